// SPDX-License-Identifier: Apache-2.0
// Linear layers of tensor parallelism in f64, by the code that f32 and bf16 go through: outputs equal the whole layer's, and gradients
// central differences of a loss over what all ranks make, in every layout, over 1 to 4 ranks; what is sent, saved and kept as scratch
// memory is what the layer's plan says; and cut into chunks layers give the same bits, send and keep as much, and fail as they do uncut.
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "../conformance/ranks.h"
#include "check.h"
#include "core/tp_linear.h"
#include "core/tp_vocabulary.h"
#include "f64_backend.h"
#include "host/backend.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr int64_t kSequence = 12, kBatch = 2, kTokens = kSequence * kBatch, kIn = 24, kOut = 36;
constexpr double kStep = 0.5;  // the loss is a polynomial of the second degree in each number, so that no step is too long

double pseudo_random(uint64_t i) {  // between -1 and 1
  i = (i + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  i = (i ^ (i >> 29)) * 0x94d049bb133111eb;
  return static_cast<double>(i >> 11) / static_cast<double>(uint64_t{1} << 52) - 1;
}

std::vector<double> numbers(int64_t count, uint64_t salt) {
  std::vector<double> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(pseudo_random(salt * 100'000 + static_cast<uint64_t>(i)));
  return all;
}

// What a call did, on a communicator of its own, beside what the plan of it says.
class Measured {
 public:
  Measured(Rank& rank, Comm& comm, const Counters& counters)
      : rank_(rank), comm_(comm), counters_(counters), sent_(counters.sent), live_(counters.live) {}
  uint64_t sent() {
    const uint64_t before = std::exchange(sent_, counters_.sent);
    return sent_ - before;
  }
  uint64_t kept() {
    for (int i = 0; i < 2; ++i) rank_.must(comm_.barrier(false));
    return counters_.live - live_;
  }

 private:
  Rank& rank_;
  Comm& comm_;
  const Counters& counters_;
  uint64_t sent_;
  const uint64_t live_;
};

uint64_t scratch_of(const TpLayerPlan& plan) {
  uint64_t all = 0;
  for (const uint64_t piece : plan.scratch) all += piece;
  return all;
}

// One layer on one rank: the whole arrays, and this rank's parts of them.
class Layer {
 public:
  Layer(Rank& rank, const std::shared_ptr<Comm>& comm, TpLinearConfig config, const std::shared_ptr<Counters>& counters);
  void compare_gradients();
  void compare_plan();
  using Numbers = std::vector<double>;
  // The output, all gradients, and the gradient of the input where the weight is frozen.
  std::vector<Numbers> results();
  uint64_t collectives_forward() const;

 private:
  // A part of an array, and where its rows and columns are in the whole.
  struct Part {
    std::vector<double> data;
    std::vector<int64_t> rows, columns;
    int64_t whole_columns = 0;
    bool is_turned = false;  // lies column by column
    double& of(size_t r, size_t c) { return data[is_turned ? c * rows.size() + r : r * columns.size() + c]; }
    int64_t index(size_t r, size_t c) const { return rows[r] * whole_columns + columns[c]; }
  };
  std::vector<int64_t> tokens(bool is_cut) const;
  std::vector<int64_t> features(int64_t whole, bool is_cut) const;
  Part part(std::vector<int64_t> rows, std::vector<int64_t> columns, int64_t whole_columns) const;
  StridedArray array(Part& part, bool is_sequence) const;
  static void load(Part* to, const std::vector<double>& whole);
  double sum(double mine);
  void forward();
  void backward(bool trains);
  double loss();
  double difference(std::vector<double>* whole, Part* own, size_t at);
  void compare_outputs();
  void compare(std::vector<double>* whole, Part* own, Part* grad, const char* what, bool is_partial);

  Rank& rank_;
  const std::shared_ptr<Comm> comm_;
  const std::shared_ptr<Counters> counters_;
  std::shared_ptr<TpLinear> layer_;
  TpLinearConfig config_;
  std::vector<double> whole_x_ = numbers(kTokens * kIn, 1), whole_w_ = numbers(kOut * kIn, 2), whole_b_ = numbers(kOut, 3),
                      factors_ = numbers(kTokens * kOut, 4);
  Part x_, w_, b_, y_, dx_, dw_, db_, dy_;
};

// Rows of the sequence are [sequence, batch].
std::vector<int64_t> Layer::tokens(bool is_cut) const {
  const int64_t own = is_cut ? kTokens / config_.ranks : kTokens, begin = is_cut ? comm_->rank() * own : 0;
  std::vector<int64_t> all;
  for (int64_t i = 0; i < own; ++i) all.push_back(begin + i);
  return all;
}

std::vector<int64_t> Layer::features(int64_t whole, bool is_cut) const {
  std::vector<int64_t> all;
  int64_t begin = 0;
  for (const int64_t block : is_cut ? config_.blocks : std::vector<int64_t>{whole}) {
    const int64_t own = is_cut ? block / config_.ranks : block;
    for (int64_t i = 0; i < own; ++i) all.push_back(begin + (is_cut ? comm_->rank() * own : 0) + i);
    begin += block;
  }
  return all;
}

Layer::Part Layer::part(std::vector<int64_t> rows, std::vector<int64_t> columns, int64_t whole_columns) const {
  return {std::vector<double>(rows.size() * columns.size(), -99), std::move(rows), std::move(columns), whole_columns};
}

Layer::Layer(Rank& rank, const std::shared_ptr<Comm>& comm, TpLinearConfig config, const std::shared_ptr<Counters>& counters)
    : rank_(rank), comm_(comm), counters_(counters) {
  config.in = kIn;
  config.out = kOut;
  config.type = DType::f64;
  config.ranks = comm->size();
  const bool column = config.split == TpSplit::column;
  if (config.blocks.empty()) config.blocks = {column ? kOut : kIn};
  config_ = config;
  layer_ = rank.must(TpLinear::create(comm, config));
  const std::vector<int64_t> ins = features(kIn, !column), outs = features(kOut, column);
  x_ = part(tokens(column && config.sequence), config.takes_whole_input ? features(kIn, false) : ins, kIn);
  y_ = part(tokens(!column && config.sequence), config.gathers_output ? features(kOut, false) : outs, kOut);
  w_ = part(outs, ins, kIn);
  w_.is_turned = config.transposed;
  b_ = part({0}, outs, kOut);
  dx_ = x_;
  dy_ = y_;
  dw_ = w_;
  db_ = b_;
  load(&x_, whole_x_);
  load(&w_, whole_w_);
  load(&b_, whole_b_);
}

void Layer::load(Part* to, const std::vector<double>& whole) {
  for (size_t r = 0; r < to->rows.size(); ++r) {
    for (size_t c = 0; c < to->columns.size(); ++c) to->of(r, c) = whole[static_cast<size_t>(to->index(r, c))];
  }
}

StridedArray Layer::array(Part& part, bool is_sequence) const {
  auto rows = static_cast<int64_t>(part.rows.size()), columns = static_cast<int64_t>(part.columns.size());
  if (is_sequence) return dense_array(part.data.data(), DType::f64, {rows / kBatch, kBatch, columns});
  if (rows == 1) return dense_array(part.data.data(), DType::f64, {columns});
  if (part.is_turned) std::swap(rows, columns);
  return dense_array(part.data.data(), DType::f64, {rows, columns});
}

double Layer::sum(double mine) {
  double all = 0;
  const StridedArray from = dense_array(&mine, DType::f64, {1}), to = dense_array(&all, DType::f64, {1});
  rank_.must(TpCollectives(*comm_, nullptr, "a sum of the test").all_reduce(to, from));
  return all;
}

void Layer::forward() {
  const StridedArray x = array(x_, true), w = array(w_, false), b = array(b_, false), y = array(y_, true);
  rank_.must(layer_->forward({&x, &w, config_.has_bias ? &b : nullptr, &y}, nullptr));
}

// The sum of f y + y^2 / 2 over the whole output, where f are the factors; its gradient is f + y.
double Layer::loss() {
  forward();
  double mine = 0;
  for (size_t r = 0; r < y_.rows.size(); ++r) {
    for (size_t c = 0; c < y_.columns.size(); ++c) {
      const double y = y_.of(r, c);
      mine += factors_[static_cast<size_t>(y_.index(r, c))] * y + y * y / 2;
    }
  }
  const bool is_replicated = config_.output_is_replicated() || config_.ranks == 1;
  return is_replicated ? mine : sum(mine);
}

double Layer::difference(std::vector<double>* whole, Part* own, size_t at) {
  double losses[2];
  const double before = (*whole)[at];
  for (int way = 0; way < 2; ++way) {
    (*whole)[at] = before + (way == 0 ? kStep : -kStep);
    load(own, *whole);
    losses[way] = loss();
  }
  (*whole)[at] = before;
  load(own, *whole);
  return (losses[0] - losses[1]) / (2 * kStep);
}

// Numbers all over the array; a gradient is partial if each rank has a part of the sum.
void Layer::compare(std::vector<double>* whole, Part* own, Part* grad, const char* what, bool is_partial) {
  const size_t tried = std::min<size_t>(whole->size(), 9);
  for (size_t k = 0; k < tried; ++k) {
    const size_t at = (k * (whole->size() - 1) / (tried - 1) * 7 + k) % whole->size();
    const double expected = difference(whole, own, at);
    double got = is_partial ? 0 : NAN;
    for (size_t r = 0; r < grad->rows.size(); ++r) {
      for (size_t c = 0; c < grad->columns.size(); ++c) {
        if (static_cast<size_t>(grad->index(r, c)) == at) got = grad->of(r, c);
      }
    }
    if (is_partial) got = sum(got);
    if (std::isnan(got)) continue;  // another rank's
    rank_.check(std::abs(got - expected) <= 1e-11 * std::max(1.0, std::abs(expected)),
                text("the gradient of ", what, " ", at, " is ", got, ", and differences say ", expected));
  }
}

// With the whole layer's: differences alone would not see that a layer is another function.
void Layer::compare_outputs() {
  double apart = 0;
  for (size_t r = 0; r < y_.rows.size(); ++r) {
    for (size_t c = 0; c < y_.columns.size(); ++c) {
      double expected = config_.has_bias ? whole_b_[static_cast<size_t>(y_.columns[c])] : 0;
      for (int64_t i = 0; i < kIn; ++i) {
        expected += whole_x_[static_cast<size_t>(y_.rows[r] * kIn + i)] * whole_w_[static_cast<size_t>(y_.columns[c] * kIn + i)];
      }
      apart = std::max(apart, std::abs(y_.of(r, c) - expected));
    }
  }
  rank_.check(apart <= 1e-13 * kIn, text("outputs are ", apart, " from the whole layer's"));
}

void Layer::backward(bool trains) {
  // A partial gradient: shares that add up to the whole.
  const bool is_partial = config_.ranks > 1 && config_.output_is_replicated() && config_.grad_is_partial;
  const auto p = static_cast<double>(config_.ranks);
  const double share = is_partial ? (comm_->rank() + 1) / (p * (p + 1) / 2) : 1;
  for (size_t r = 0; r < y_.rows.size(); ++r) {
    for (size_t c = 0; c < y_.columns.size(); ++c) {
      dy_.of(r, c) = share * (factors_[static_cast<size_t>(y_.index(r, c))] + y_.of(r, c));
    }
  }
  const StridedArray x = array(x_, true), w = array(w_, false), dx = array(dx_, true), dy = array(dy_, true), dw = array(dw_, false),
                     db = array(db_, false);
  TpLinear::Backward given{nullptr, &x, &w, &dy, &dx};
  if (trains) given.grad_weight = &dw;
  if (trains && config_.has_bias) given.grad_bias = &db;
  rank_.must(layer_->backward(given, nullptr));
}

void Layer::compare_gradients() {
  forward();
  compare_outputs();
  backward(true);
  compare(&whole_x_, &x_, &dx_, "input", false);
  compare(&whole_w_, &w_, &dw_, "weight", false);
  const bool bias_is_partial = config_.ranks > 1 && config_.split == TpSplit::row && config_.sequence;
  if (config_.has_bias) compare(&whole_b_, &b_, &db_, "bias", bias_is_partial);
}

std::vector<Layer::Numbers> Layer::results() {
  forward();
  const uint64_t before = counters_->calls;
  forward();
  const uint64_t calls = counters_->calls - before;
  rank_.check(calls == collectives_forward(), text("forward is ", calls, " collectives, not ", collectives_forward()));
  backward(true);
  std::vector<Numbers> all{y_.data, dx_.data, dw_.data, db_.data};
  for (double& number : dx_.data) number = -99;
  backward(false);
  all.push_back(dx_.data);
  return all;
}

uint64_t Layer::collectives_forward() const {
  const auto chunks = [&](const Part& part) {
    const uint64_t rows = part.rows.size(), chunk = config_.chunk_rows > 0 ? static_cast<uint64_t>(config_.chunk_rows) : rows;
    return (rows + chunk - 1) / chunk;
  };
  const TpMove in = config_.input(), out = config_.output();
  return (in == TpMove::gather_sequence ? chunks(x_) : 0) + (out == TpMove::sum || out == TpMove::sum_sequence ? chunks(y_) : 0) +
         (out == TpMove::gather_features ? config_.blocks.size() : 0);
}

// On a communicator of its own, whose scratch memory is this layer's.
void Layer::compare_plan() {
  const StridedArray x = array(x_, true), w = array(w_, false), b = array(b_, false), y = array(y_, true), dx = array(dx_, true),
                     dy = array(dy_, true), dw = array(dw_, false), db = array(db_, false);
  for (const bool trains : {false, true}) {
    const TpLayerPlan plan = config_.plan(kTokens, trains);
    rank_.check(plan.weight == w_.data.size() * 8 && plan.bias == (config_.has_bias ? b_.data.size() * 8 : 0), "bytes of the weight");
    const auto comm = rank_.must(comm_->split(0, comm_->rank()));
    const auto layer = rank_.must(TpLinear::create(comm, config_));
    Measured measured(rank_, *comm, *counters_);
    rank_.must(layer->forward({&x, &w, config_.has_bias ? &b : nullptr, &y}, nullptr));
    const uint64_t forward = measured.sent();
    TpLinear::Backward given{nullptr, &x, &w, &dy, &dx};
    if (trains) given.grad_weight = &dw;
    if (config_.has_bias) given.grad_bias = &db;
    rank_.must(layer->backward(given, nullptr));
    const uint64_t backward = measured.sent(), kept = measured.kept();
    rank_.check(forward == plan.sent_forward, text("forward sends ", forward, " bytes, the plan says ", plan.sent_forward));
    rank_.check(backward == plan.sent_backward, text("backward sends ", backward, " bytes, the plan says ", plan.sent_backward));
    rank_.check(kept == scratch_of(plan), text("scratch memory is ", kept, " bytes, the plan says ", scratch_of(plan)));
    if (!trains) {
      rank_.check(plan.saved == 0, "a frozen weight saves its input");
      continue;
    }
    const auto saved = rank_.must(layer->save(x, nullptr));
    const uint64_t more = measured.kept() - kept;
    rank_.check(more == plan.saved, text("saved are ", more, " bytes, the plan says ", plan.saved));
  }
}

std::vector<TpLinearConfig> all_ways() {
  std::vector<TpLinearConfig> ways;
  const std::vector<int64_t> column_blocks[] = {{}, {12, 12, 12}, {24, 12}}, row_blocks[] = {{}, {12, 12}};
  for (int bits = 0; bits < 16; ++bits) {
    TpLinearConfig way;
    way.has_bias = (bits & 1) != 0;
    way.sequence = (bits & 2) != 0;
    way.grad_is_partial = (bits & 4) != 0;
    const bool last = (bits & 8) != 0;
    way.gathers_output = last;
    for (const auto& blocks : column_blocks) {
      way.blocks = blocks;
      way.transposed = !way.transposed;
      ways.push_back(way);
    }
    way.split = TpSplit::row;
    way.gathers_output = false;
    way.takes_whole_input = last;
    if (way.sequence && last) continue;
    for (const auto& blocks : row_blocks) {
      way.blocks = blocks;
      way.transposed = !way.transposed;
      ways.push_back(way);
    }
  }
  return ways;
}

// Into one to eight chunks, the last of them shorter or not.
void compare_chunks(Rank& rank, const std::shared_ptr<Comm>& comm, const TpLinearConfig& way, const std::shared_ptr<Counters>& counters) {
  const auto whole = Layer(rank, comm, way, counters).results();
  for (const int64_t rows : {3, 5, 9}) {
    TpLinearConfig cut = way;
    cut.chunk_rows = rows;
    Layer layer(rank, comm, cut, counters);
    const auto parts = layer.results();
    for (size_t i = 0; i < whole.size(); ++i) {
      rank.check(parts[i] == whole[i], text("result ", i, " differs in chunks of ", rows, " rows"));
    }
    layer.compare_plan();
  }
}

std::string name_of(const TpLinearConfig& way) {
  return text(way.split == TpSplit::column ? "column" : "row", " bias ", way.has_bias, " sequence ", way.sequence, " partial ",
              way.grad_is_partial, " gathers ", way.gathers_output, " whole input ", way.takes_whole_input, " transposed ", way.transposed,
              " blocks ", way.blocks.size());
}

void compare_vocabulary(Rank& rank, Comm& whole, const Counters& counters) {
  const int64_t ranks = whole.size(), rows = 48, part = rows / ranks, features = 20;
  std::vector<int64_t> ids(kTokens, 5);
  std::vector<float> table(static_cast<size_t>(part * features)), output(kTokens * features), logits(static_cast<size_t>(kTokens * part)),
      losses(kTokens), saved(kTokens * 2);
  const StridedArray id = dense_array(ids.data(), DType::i64, {kSequence, kBatch}),
                     weight = dense_array(table.data(), DType::f32, {part, features});
  for (const bool sequence : {false, true}) {
    for (const bool partial : {false, true}) {
      const auto comm = rank.must(whole.split(0, whole.rank()));
      Measured measured(rank, *comm, counters);
      const EmbeddingShape shape{rows, sequence, partial};
      const TpLayerPlan plan = shape.plan(features, DType::f32, kTokens, ranks);
      rank.check(plan.weight == table.size() * sizeof(float) && plan.saved == 0, "bytes of the table");
      const StridedArray out = dense_array(output.data(), DType::f32, {sequence ? kSequence / ranks : kSequence, kBatch, features});
      rank.must(embedding_forward(*comm, shape, {id, weight, out, "table", "output"}, nullptr));
      const uint64_t forward = measured.sent();
      rank.must(embedding_backward(*comm, shape, {id, weight, out, "grad_table", "grad_output"}, false, nullptr));
      const uint64_t backward = measured.sent(), kept = measured.kept();
      rank.check(forward == plan.sent_forward && backward == plan.sent_backward && kept == scratch_of(plan),
                 text("an embedding sends ", forward, " and ", backward, " bytes and keeps ", kept, "; the plan says ", plan.sent_forward,
                      ", ", plan.sent_backward, ", ", scratch_of(plan)));
    }
  }
  const auto comm = rank.must(whole.split(0, whole.rank()));
  Measured measured(rank, *comm, counters);
  const TpLayerPlan plan = plan_cross_entropy(kTokens, ranks);
  const StridedArray x = dense_array(logits.data(), DType::f32, {kSequence, kBatch, part}),
                     loss = dense_array(losses.data(), DType::f32, {kSequence, kBatch}),
                     sums = dense_array(saved.data(), DType::f32, {kSequence, kBatch, 2});
  rank.must(cross_entropy_forward(*comm, {}, x, id, loss, &sums, nullptr));
  const uint64_t forward = measured.sent();
  rank.must(cross_entropy_backward(*comm, {}, x, id, sums, loss, x, nullptr));
  const uint64_t backward = measured.sent(), kept = measured.kept();
  rank.check(forward == plan.sent_forward && backward == plan.sent_backward && kept == scratch_of(plan),
             text("a cross-entropy sends ", forward, " and ", backward, " bytes and keeps ", kept, "; the plan says ", plan.sent_forward,
                  ", ", plan.sent_backward, ", ", scratch_of(plan)));
  rank.check(plan.saved == saved.size() * sizeof(float), "bytes that a cross-entropy saves");
}

// ── a product that fails on one rank ──

std::atomic<int> others_came;

// `products` of rank 0 go well; the others come late. It returns after what it has begun with them, which they end.
Status forward_that_fails(Rank& rank, TpLinear& layer, const TpLinear::Forward& given, Counters& counters, int products) {
  rank.must(layer.comm().barrier(false));
  others_came = 0;
  rank.must(layer.comm().barrier(false));
  if (rank.rank() == 0) {
    counters.products_left = products;
    const Status failed = layer.forward(given, nullptr);
    counters.products_left = 1 << 30;
    rank.fails(failed, Code::memory, {"lets fail"});
    rank.check(others_came == rank.size() - 1, "forward returned while its arrays were in use");
    return failed;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ++others_came;
  return layer.forward(given, nullptr);
}

void fail_in_a_chunk(Rank& rank, const std::shared_ptr<Comm>& comm, const std::shared_ptr<Counters>& counters) {
  const int64_t ranks = comm->size(), rows = 24;
  TpLinearConfig config;
  config.split = TpSplit::row;
  config.in = config.out = 24;
  config.blocks = {24};
  config.type = DType::f64;
  config.ranks = ranks;
  config.chunk_rows = 8;
  for (const bool sequence : {false, true}) {
    config.sequence = sequence;
    const int64_t own = sequence ? rows / ranks : rows, chunks = (own + 7) / 8, part = 24 / ranks;
    const auto layer = rank.must(TpLinear::create(comm, config));
    std::vector<double> x(static_cast<size_t>(rows * part), 1), w(static_cast<size_t>(24 * part), 1), y(static_cast<size_t>(own * 24), -99);
    const StridedArray input = dense_array(x.data(), DType::f64, {rows, part}), weight = dense_array(w.data(), DType::f64, {24, part}),
                       output = dense_array(y.data(), DType::f64, {own, 24});
    if (chunks > 1) {
      const Status done =
          forward_that_fails(rank, *layer, {&input, &weight, nullptr, &output}, *counters, sequence ? static_cast<int>(ranks) : 1);
      if (rank.rank() == 0) {
        rank.check(y[0] == 24 && y[8 * 24 - 1] == 24, "a chunk before the one that failed is not summed");
        rank.check(y[8 * 24] == -99, "a chunk that failed was summed");
        // One collective for each chunk is what the others still wait for.
        TpCollectives missing(*comm, nullptr, "a linear layer, forward");
        for (int64_t begin = 8; begin < own; begin += 8) {
          const auto count = static_cast<uint64_t>(std::min<int64_t>(8, own - begin) * 24);
          std::vector<double> sent(count * static_cast<uint64_t>(ranks), 0);
          if (sequence)
            rank.must(missing.submit_reduce_scatter(sent.data(), sent.data(), Counts(static_cast<size_t>(ranks), count), DType::f64));
          if (!sequence) rank.must(missing.submit_all_reduce(sent.data(), sent.data(), count, DType::f64));
          rank.must(missing.end());
        }
      } else {
        rank.must(done);
      }
    }
    rank.must(layer->forward({&input, &weight, nullptr, &output}, nullptr));
    rank.check(y == std::vector<double>(y.size(), 24), "a forward after one that failed is wrong");
  }
}

// The product of the own rows, under which the others' come: nobody waits for more.
void fail_beside_a_gather(Rank& rank, const std::shared_ptr<Comm>& comm, const std::shared_ptr<Counters>& counters) {
  const int64_t ranks = comm->size(), own = 24 / ranks, part = 24 / ranks;
  TpLinearConfig config;
  config.in = config.out = 24;
  config.blocks = {24};
  config.type = DType::f64;
  config.ranks = ranks;
  config.sequence = true;
  config.chunk_rows = 4;
  const auto layer = rank.must(TpLinear::create(comm, config));
  std::vector<double> x(static_cast<size_t>(own * 24), 1), w(static_cast<size_t>(part * 24), 1), y(static_cast<size_t>(24 * part), -99);
  const StridedArray input = dense_array(x.data(), DType::f64, {own, 24}), weight = dense_array(w.data(), DType::f64, {part, 24}),
                     output = dense_array(y.data(), DType::f64, {24, part});
  const Status done = forward_that_fails(rank, *layer, {&input, &weight, nullptr, &output}, *counters, 0);
  if (rank.rank() > 0) rank.must(done);
  rank.must(layer->forward({&input, &weight, nullptr, &output}, nullptr));
  rank.check(y == std::vector<double>(y.size(), 24), "a forward after one that failed is wrong");
}

void take_part(Rank& rank) {
  const auto counters = std::make_shared<Counters>();
  const auto comm = rank.must(Comm::create(rank.shared_world(), make_f64_backend(rank.shared_backend(), counters), {}));
  for (const TpLinearConfig& way : all_ways()) {
    const size_t before = rank.findings().size();
    Layer layer(rank, comm, way, counters);
    layer.compare_gradients();
    layer.compare_plan();
    compare_chunks(rank, comm, way, counters);
    if (rank.findings().size() > before) return rank.must(invalid("so it is of ", name_of(way)));
  }
  compare_vocabulary(rank, *comm, *counters);
  if (comm->size() == 1) return;
  fail_in_a_chunk(rank, comm, counters);
  fail_beside_a_gather(rank, comm, counters);
}

void check_sizes_of_chunks() {
  const auto rows = [](TpMove move, int64_t all, int64_t features, int64_t ranks = 2, DType type = DType::f32) {
    return rows_of_chunk(move, all, features, type, ranks, true);
  };
  check(rows(TpMove::sum, 1664, 4096) == 640, "26 MiB of enough rows are three chunks, the last of them shorter");
  check(rows(TpMove::sum, 1024, 4096) == 512, "16 MiB are two chunks");
  check(rows(TpMove::sum, 1100, 4096) == 640 && rows(TpMove::gather_sequence, 1100, 2048) == 640, "chunks are whole tiles");
  check(rows(TpMove::sum, 1024, 4095) == 1024, "less than 8 MiB are no chunk");
  check(rows(TpMove::sum, 1023, 1 << 16) == 1023, "fewer than 512 rows are no chunk");
  check(rows(TpMove::sum, 1 << 20, 4096) == 1 << 18, "there are at most four chunks");
  check(rows(TpMove::sum, 1664, 4096, 2, DType::bf16) == 1664, "of bf16 half as much moves");
  for (const TpMove move : {TpMove::sum_sequence, TpMove::gather_sequence}) {
    check(rows(move, 1664, 2048) == 640, "with a sequence the parts of all ranks move");
    check(rows(move, 1664, 1024, 4) == 640, "with a sequence the parts of all ranks move");
  }
  check(rows(TpMove::sum, 1664, 4096, 1) == 1664, "one rank cuts nothing");
  for (const TpMove move : {TpMove::none, TpMove::own_features, TpMove::gather_features, TpMove::sum_features}) {
    check(rows(move, 1664, 4096) == 1664, "what moves by features is not cut by rows");
  }
  check(rows_of_chunk(TpMove::sum, 1664, 4096, DType::f32, 2, false) == 1664, "where collectives take the products' time nothing is cut");
}

}  // namespace

int main() {
  check_sizes_of_chunks();
  for (int size = 1; size <= 4; ++size) {
    const Setting setting{.open = [](std::shared_ptr<World> world) { return host::HostBackend::open(std::move(world)); }};
    const Outcome outcome = run_ranks(setting, size, take_part);
    for (const std::string& finding : outcome.findings) check(false, text("of ", size, ": ", finding));
    check(outcome.checks > 1000, text(size, " ranks made ", outcome.checks, " checks"));
  }
  return finish();
}
