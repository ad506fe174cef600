// SPDX-License-Identifier: Apache-2.0
// Lion. Included as base/adam.h is.
//
// Chen et al., Symbolic Discovery of Optimization Algorithms (2023), program 1: the sign of a mean that beta1 weighs, decoupled weight
// decay, then the mean that is kept, by beta2. The sign of 0 is 0.

struct Lion {
  static constexpr const char* name = "Lion";
  static constexpr std::array<StateArray, 1> state{{{"exp_avg", DType::f32}}};
  static constexpr std::array<HyperParameter, 4> hyper{{{"lr", &Hyper::lr, 1e-4, Range::factor},
                                                        {"beta1", &Hyper::beta1, 0.9, Range::decay},
                                                        {"beta2", &Hyper::beta2, 0.99, Range::decay},
                                                        {"weight_decay", &Hyper::weight_decay, 0, Range::factor}}};

  struct Constants {
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float decay;  // 1 - lr * weight_decay
    float lr;
  };
  static MEGADP_ELEMENT Constants constants(const Hyper& hyper, uint64_t /*steps*/) {
    Constants c;
    c.beta1 = static_cast<float>(hyper.beta1);
    c.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
    c.beta2 = static_cast<float>(hyper.beta2);
    c.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
    c.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
    c.lr = static_cast<float>(hyper.lr);
    return c;
  }

  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F g, F& master, F& m) {
    const F mean = F(c.beta1) * m + F(c.one_minus_beta1) * g;
    master = master * F(c.decay) - F(c.lr) * sign(mean);
    m = F(c.beta2) * m + F(c.one_minus_beta2) * g;
  }
};
