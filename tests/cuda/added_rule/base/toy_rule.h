// SPDX-License-Identifier: Apache-2.0
// The rule that the tests add, like base/adam.h: a running sum of gradients, kept in bf16, along which the parameter goes.

struct Toy {
  static constexpr const char* name = "toy";
  static constexpr std::array<StateArray, 1> state{{{"velocity", DType::bf16}}};
  static constexpr std::array<HyperParameter, 3> hyper{{{"lr", &Hyper::lr, 0.25, Range::factor},
                                                        {"beta1", &Hyper::beta1, 0.5, Range::decay},
                                                        {"weight_decay", &Hyper::weight_decay, 0, Range::factor}}};

  struct Constants {
    float beta1, decay, lr;
  };
  static MEGADP_ELEMENT Constants constants(const Hyper& hyper, uint64_t) {
    return {static_cast<float>(hyper.beta1), static_cast<float>(1 - hyper.lr * hyper.weight_decay), static_cast<float>(hyper.lr)};
  }

  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F grad, F& master, F& velocity) {
    velocity = F(c.beta1) * velocity + grad;
    master = master * F(c.decay) - F(c.lr) * velocity;
  }
};
