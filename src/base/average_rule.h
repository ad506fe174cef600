// SPDX-License-Identifier: Apache-2.0
// What follows an update where an optimizer averages (core/optimizer_average.cc): the exponential moving average of the master, in the form
// of torch's lerp: where the master stays, so does the average, bit for bit. Included as base/adam.h is. No rule to be configured.
//   a = a + (1 - decay) (w - a)

struct AverageRule {
  static constexpr const char* name = "average";
  static constexpr std::array<StateArray, 1> state{{{kAverageState, DType::f32}}};
  static constexpr std::array<HyperParameter, 0> hyper{};
  struct Constants {
    float rest;
  };
  static MEGADP_ELEMENT Constants constants(const Hyper& hyper, uint64_t /*steps*/) { return {static_cast<float>(1 - hyper.momentum)}; }
  template <class F>
  static MEGADP_ELEMENT void element(const Constants& c, F /*g*/, F& master, F& average) {
    average = average + F(c.rest) * (master - average);
  }
};
