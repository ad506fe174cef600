// SPDX-License-Identifier: Apache-2.0
// The two ends of a step whose update is the caller's (core/optimizer_pieces.cc). Included as base/adam.h is.

// The caller has updated master and state: what is left is to round the master into the parameter.
struct CallerRule {
  static constexpr const char* name = "the caller's rule";
  static constexpr std::array<StateArray, 0> state{};  // the optimizer's configuration says which
  static constexpr std::array<HyperParameter, 6> hyper{{{"lr", &Hyper::lr, 1e-3, Range::factor},
                                                        {"beta1", &Hyper::beta1, 0.9, Range::decay},
                                                        {"beta2", &Hyper::beta2, 0.999, Range::decay},
                                                        {"eps", &Hyper::eps, 1e-8, Range::divisor},
                                                        {"weight_decay", &Hyper::weight_decay, 0, Range::factor},
                                                        {"momentum", &Hyper::momentum, 0.9, Range::decay}}};
  struct Constants {};
  static MEGADP_ELEMENT Constants constants(const Hyper& /*hyper*/, uint64_t /*steps*/) { return {}; }
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& /*c*/, F /*g*/, F& /*master*/) {}
};

// What every rule sees, and the caller's too: the gradient, divided and clipped. The master is where it goes. No rule to be configured.
struct GradientRule {
  static constexpr const char* name = "gradient";
  static constexpr std::array<StateArray, 0> state{};
  static constexpr std::array<HyperParameter, 0> hyper{};
  struct Constants {};
  static MEGADP_ELEMENT Constants constants(const Hyper& /*hyper*/, uint64_t /*steps*/) { return {}; }
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& /*c*/, F g, F& master) {
    master = g;
  }
};
