// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW. Like base/elements.h no header of its own: it is included by base/rule_list.h inside a namespace, once for every SIMD
// target, and uses what elements.h is given.
//
// Kingma and Ba, Adam: A Method for Stochastic Optimization (2015), algorithm 1; Loshchilov and Hutter, Decoupled Weight Decay
// Regularization (2019), algorithm 2: Adam with weight_decay as L2 regularization, AdamW with it decoupled. In the order of operations that
// PyTorch documents: decay, moments, then step_size * m / (sqrt(v) / sqrt(1 - beta2^t) + eps).

struct AdamConstants {
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float decay;       // Adam: weight_decay, of the gradient; AdamW: 1 - lr * weight_decay, of the parameter
  float step_size;   // lr / (1 - beta1^t)
  float bias2_root;  // sqrt(1 - beta2^t)
  float eps;
};

// What the two have in common.
struct AdamFamily {
  static constexpr std::array<StateArray, 2> state{{{"exp_avg", DType::f32}, {"exp_avg_sq", DType::f32}}};
  static constexpr std::array<HyperParameter, 5> hyper{{{"lr", &Hyper::lr, 1e-3, Range::factor},
                                                        {"beta1", &Hyper::beta1, 0.9, Range::decay},
                                                        {"beta2", &Hyper::beta2, 0.999, Range::decay},
                                                        {"eps", &Hyper::eps, 1e-8, Range::divisor},
                                                        {"weight_decay", &Hyper::weight_decay, 0, Range::factor}}};
  using Constants = AdamConstants;

  // Computed in double, each rounded once.
  static MEGADP_ELEMENT Constants constants(const Hyper& hyper, uint64_t steps, double decay) {
    Constants c;
    c.beta1 = static_cast<float>(hyper.beta1);
    c.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
    c.beta2 = static_cast<float>(hyper.beta2);
    c.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
    c.decay = static_cast<float>(decay);
    c.step_size = static_cast<float>(hyper.lr / (1 - power(hyper.beta1, steps)));
    c.bias2_root = static_cast<float>(std::sqrt(1 - power(hyper.beta2, steps)));
    c.eps = static_cast<float>(hyper.eps);
    return c;
  }

  // Both moments, and how far the parameter goes.
  template <class F>
  static MEGADP_ELEMENT F moved(const Constants& c, F g, F& m, F& v) {
    m = F(c.beta1) * m + F(c.one_minus_beta1) * g;
    v = F(c.beta2) * v + F(c.one_minus_beta2) * g * g;
    return F(c.step_size) * m / (square_root(v) / F(c.bias2_root) + F(c.eps));
  }
};

struct AdamW : AdamFamily {
  static constexpr const char* name = "AdamW";
  static MEGADP_ELEMENT Constants constants(const Hyper& hyper, uint64_t steps) {
    return AdamFamily::constants(hyper, steps, 1 - hyper.lr * hyper.weight_decay);
  }
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F g, F& master, F& m, F& v) {
    const F step = moved(c, g, m, v);
    master = master * F(c.decay) - step;
  }
};

struct Adam : AdamFamily {
  static constexpr const char* name = "Adam";
  static MEGADP_ELEMENT Constants constants(const Hyper& hyper, uint64_t steps) {
    return AdamFamily::constants(hyper, steps, hyper.weight_decay);
  }
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F g, F& master, F& m, F& v) {
    master = master - moved(c, g + F(c.decay) * master, m, v);
  }
};
