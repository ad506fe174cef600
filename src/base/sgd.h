// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent: plain, with momentum, with Nesterov's. Included as base/adam.h is.
//
// The form of PyTorch's torch.optim.SGD, after Sutskever et al., On the importance of initialization and momentum in deep learning (2013):
// the buffer b is a sum of gradients in which lr does not stand, and weight_decay is L2 regularization.
//   g = g + weight_decay w       b = momentum b + g       w = w - lr g     w = w - lr b     w = w - lr (g + momentum b)

struct SgdConstants {
  float lr, weight_decay, momentum;
};

struct SgdFamily {
  using Constants = SgdConstants;
  static MEGADP_ELEMENT Constants constants(const Hyper& hyper, uint64_t /*steps*/) {
    return {static_cast<float>(hyper.lr), static_cast<float>(hyper.weight_decay), static_cast<float>(hyper.momentum)};
  }
};

struct Sgd : SgdFamily {
  static constexpr const char* name = "SGD";
  static constexpr std::array<StateArray, 0> state{};
  static constexpr std::array<HyperParameter, 2> hyper{
      {{"lr", &Hyper::lr, 1e-3, Range::factor}, {"weight_decay", &Hyper::weight_decay, 0, Range::factor}}};
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F g, F& master) {
    master = master - F(c.lr) * (g + F(c.weight_decay) * master);
  }
};

struct MomentumFamily : SgdFamily {
  static constexpr std::array<StateArray, 1> state{{{"momentum_buffer", DType::f32}}};
  static constexpr std::array<HyperParameter, 3> hyper{{{"lr", &Hyper::lr, 1e-3, Range::factor},
                                                        {"momentum", &Hyper::momentum, 0.9, Range::decay},
                                                        {"weight_decay", &Hyper::weight_decay, 0, Range::factor}}};
};

struct SgdMomentum : MomentumFamily {
  static constexpr const char* name = "SGD with momentum";
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F g, F& master, F& buffer) {
    buffer = F(c.momentum) * buffer + (g + F(c.weight_decay) * master);
    master = master - F(c.lr) * buffer;
  }
};

struct SgdNesterov : MomentumFamily {
  static constexpr const char* name = "SGD with Nesterov momentum";
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F g, F& master, F& buffer) {
    const F gradient = g + F(c.weight_decay) * master;
    buffer = F(c.momentum) * buffer + gradient;
    master = master - F(c.lr) * (gradient + F(c.momentum) * buffer);
  }
};
