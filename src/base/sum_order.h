// SPDX-License-Identifier: Apache-2.0
// The order in which the values of n ranks are added up, wherever megadp adds: a balanced binary tree over the ranks. The left side takes
// as many as the largest power of two below n; partial sums are not divided, and are rounded to the type of the sum alone.
//
//   n = 2   0+1                n = 5   ((0+1)+(2+3))+4
//   n = 3   (0+1)+2            n = 6   ((0+1)+(2+3))+(4+5)
//   n = 4   (0+1)+(2+3)        n = 7   ((0+1)+(2+3))+((4+5)+6)
//
// The result does not depend on who adds, or on timing. An aligned power of two of neighbours is a subtree: the ranks of one node can be
// added up before the nodes are, and halves that ranks exchange give the same bits as one rank that reads all.
#pragma once

#if defined(__CUDACC__)
#define MEGADP_SUM_ORDER __host__ __device__
#else
#define MEGADP_SUM_ORDER
#endif

namespace megadp {

// How many of n values, n > 1, are on the left side.
MEGADP_SUM_ORDER constexpr int left_side(int n) {
  int left = 1;
  while (left * 2 < n) left *= 2;
  return left;
}

// The same tree for values that come one after another, each `together` of the n (a power of two, or what is left at the end) added up
// already: push() them, then take the sum. add(a, b) has the left operand first.
template <class Value, class Add>
class TreeSum {
 public:
  MEGADP_SUM_ORDER explicit TreeSum(const Add& add) : add_(add) {}
  MEGADP_SUM_ORDER void push(Value value) {
    // The partial sums that wait are as many as the ones in the binary number of values so far, each of twice the values of the next.
    for (unsigned ones = pushed_; (ones & 1) != 0; ones >>= 1) value = add_(waiting_[--depth_], value);
    waiting_[depth_++] = value;
    ++pushed_;
  }
  MEGADP_SUM_ORDER Value sum() const {
    Value value = waiting_[depth_ - 1];
    for (int i = depth_ - 1; i-- > 0;) value = add_(waiting_[i], value);
    return value;
  }

 private:
  static constexpr int kDepth = 20;  // for a million
  const Add& add_;
  Value waiting_[kDepth];
  int depth_ = 0;
  unsigned pushed_ = 0;
};

}  // namespace megadp
