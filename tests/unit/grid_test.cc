// SPDX-License-Identifier: Apache-2.0
// Process grids: what is refused and how, and groups against coordinates worked out another way.
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "check.h"
#include "core/grid.h"
#include "core/plan_json.h"

using namespace megadp;
using namespace megadp::test;

namespace {

const std::map<std::string, Axes> kWords = {{"tp", kTp}, {"cp", kCp}, {"ep", kEp}, {"dp", kDp}, {"pp", kPp}};

GridConfig config(int tp, int cp = 1, int ep = 1, int pp = 1, int expert_tp = 0, const std::string& order = "tp-cp-ep-dp-pp") {
  GridConfig out;
  out.tp = tp;
  out.cp = cp;
  out.ep = ep;
  out.pp = pp;
  out.expert_tp = expert_tp;
  out.order = order;
  return out;
}

void refuse(const GridConfig& given, int world, const std::vector<std::string>& words, std::source_location at = Place::current()) {
  fails(Grid::create(given, world).status(), Code::invalid, words, at);
}

void refuses_bad_sizes() {
  refuse(config(1), 0, {"0 ranks"});
  refuse(config(1), -1, {"-1 ranks"});
  refuse(config(1), INT32_MAX, {"2147483647 ranks", "1048576"});
  refuse(config(0), 8, {"tp is 0", "at least 1"});
  refuse(config(1, -2), 8, {"cp is -2"});
  refuse(config(1, 1, 0), 8, {"ep is 0"});
  refuse(config(1, 1, 1, INT32_MIN), 8, {"pp is -2147483648"});
  refuse(config(1, 1, 1, 1, -1), 8, {"expert_tp is -1"});
  refuse(config(3), 8, {"8 ranks", "tp 3", "must divide 8"});
  refuse(config(16), 8, {"8 ranks", "tp 16"});
  refuse(config(INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX), 8, {"tp 2147483647"});
  refuse(config(2, 2, 1, 4), 8, {"tp 2 x cp 2 x pp 4"});
  refuse(config(1, 1, 3, 1, 1), 8, {"expert_tp 1 x ep 3"});
  refuse(config(1, 1, 1, 1, 3), 8, {"expert_tp 3 x ep 1"});
  refuse(config(2, 1, 8), 8, {"expert_tp 2 x ep 8"});  // expert_tp is tp where nothing else is said
  GridConfig instances = config(1);
  instances.instances = 3;
  refuse(instances, 8, {"instances is 3", "8 ranks"});
  instances.instances = -1;
  refuse(instances, 8, {"instances is -1"});
  instances.instances = 4;
  instances.ep = 4;
  refuse(instances, 8, {"instances is 4", "2 data-parallel ranks of the expert grid"});
  instances.instances = 2;
  check(Grid::create(instances, 8).ok(), "two instances of 8 dense and 2 expert ranks");
}

void refuses_bad_orders() {
  refuse(config(2, 1, 1, 1, 0, "cp-ep-dp-pp"), 8, {"leaves out tp", "2 on the dense grid"});
  refuse(config(1, 1, 1, 1, 2, "cp-ep-dp-pp"), 8, {"leaves out tp", "2 on the expert grid"});
  refuse(config(1, 2, 1, 1, 0, "tp-ep-dp-pp"), 8, {"leaves out cp", "2"});
  refuse(config(1, 1, 2, 1, 0, "tp-cp-dp-pp"), 8, {"leaves out ep", "expert"});
  refuse(config(1, 1, 1, 2, 0, "tp-cp-ep-dp"), 8, {"leaves out pp"});
  refuse(config(2, 2, 1, 2, 0, "tp-cp-ep-pp"), 16, {"leaves out dp", "2 on the dense"});
  refuse(config(2, 2, 1, 1, 0, "tp-cp"), 4, {"leaves out dp", "2 on the expert"});
  refuse(config(1, 1, 1, 1, 0, ""), 1, {"''", "not an axis"});
  refuse(config(1, 1, 1, 1, 0, "-"), 1, {"not an axis"});
  refuse(config(1, 1, 1, 1, 0, "dp-"), 1, {"not an axis"});
  refuse(config(1, 1, 1, 1, 0, "dp--tp"), 1, {"not an axis"});
  refuse(config(1, 1, 1, 1, 0, "DP"), 1, {"'DP'", "not an axis"});
  refuse(config(1, 1, 1, 1, 0, "dp tp"), 1, {"'dp tp'", "not an axis"});
  refuse(config(1, 1, 1, 1, 0, "tp-dp-sp"), 1, {"'sp'", "not an axis"});
  refuse(config(1, 1, 1, 1, 0, "tp-dp-tp"), 1, {"names tp twice"});
  const Status endless = Grid::create(config(1, 1, 1, 1, 0, std::string(1 << 20, 'x')), 1).status();
  check(endless.code() == Code::invalid && endless.text().size() < 400, "a very long order is not quoted whole");

  // Stages must be the same for dense and expert parameters.
  refuse(config(1, 2, 1, 2, 0, "tp-cp-ep-pp-dp"), 8, {"put pp last", "dp is 2 on the dense and 4 on the expert grid"});
  refuse(config(2, 1, 2, 2, 1, "tp-pp-ep-dp"), 8, {"pipelines", "put pp last"});
  check(Grid::create(config(1, 2, 1, 2, 0, "tp-cp-ep-dp-pp"), 8).ok(), "pp last");
  check(Grid::create(config(2, 1, 2, 2, 1, "tp-ep-pp-dp"), 8).ok(), "pp not last, but in the same places");
  // Axes of size 1 may be left out.
  check(Grid::create(config(1, 1, 1, 1, 0, "dp"), 8).ok(), "dp alone");
  check(Grid::create(config(8, 1, 1, 1, 0, "tp"), 8).ok(), "tp alone");
}

void refuses_bad_axes() {
  const auto grid = Grid::create(config(2, 1, 2, 1, 1), 8);
  fails(grid->check_axes(0), Code::invalid, {"no axis"});
  fails(grid->check_axes(kExpertGrid), Code::invalid, {"no axis"});
  fails(grid->check_axes(32 | kTp), Code::invalid, {"unknown bits 32"});
  fails(grid->check_axes(0xffffffff), Code::invalid, {"unknown bits"});
  fails(grid->check_axes(kEp | kDp), Code::invalid, {"ep on the dense grid"});
  fails(grid->check_axes(kCp | kExpertGrid), Code::invalid, {"cp on the expert grid"});
  for (const Axes axes : {kTp, kCp, kDp, kPp, kTp | kCp | kDp | kPp, kTp | kEp | kDp | kPp | kExpertGrid})
    check(grid->check_axes(axes).ok(), text("axes ", axes));
  check_equal(grid->config().expert_tp, 1, "expert_tp");
  check_equal(Grid::create(config(2), 8)->config().expert_tp, 2, "expert_tp from tp");
}

struct Case {
  GridConfig config;
  int world = 1;
  bool expert = false;
  Axes axes = 0;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "world " << c.world << " tp " << c.config.tp << " cp " << c.config.cp << " ep " << c.config.ep << " pp " << c.config.pp
             << " etp " << c.config.expert_tp << " order " << c.config.order << " axes " << c.axes;
}

rc::Gen<Case> any_case() {
  return rc::gen::exec([] {
    Case out;
    const auto size = rc::gen::inRange(1, 5);
    out.config.tp = *size;
    out.config.cp = *size;
    out.config.ep = *size;
    out.config.pp = *rc::gen::inRange(1, 4);
    out.config.expert_tp = *rc::gen::inRange(0, 4);
    // A world that both products divide, as long as it is not too large.
    const int etp = out.config.expert_tp == 0 ? out.config.tp : out.config.expert_tp;
    const int dense = out.config.tp * out.config.cp * out.config.pp, expert = etp * out.config.ep * out.config.pp;
    out.world = std::lcm(dense, expert) * *rc::gen::inRange(1, 4);
    std::vector<std::string> words = {"tp", "cp", "ep", "dp", "pp"};
    for (size_t i = words.size() - 1; i > 0; --i) std::swap(words[i], words[*rc::gen::inRange<size_t>(0, i + 1)]);
    out.config.order.clear();
    for (const std::string& word : words) out.config.order += text(out.config.order.empty() ? "" : "-", word);
    out.expert = *rc::gen::arbitrary<bool>();
    const std::vector<Axes> usable = out.expert ? std::vector<Axes>{kTp, kEp, kDp, kPp} : std::vector<Axes>{kTp, kCp, kDp, kPp};
    const int picked = *rc::gen::inRange(1, 16);
    for (size_t i = 0; i < 4; ++i)
      if ((picked >> i & 1) != 0) out.axes |= usable[i];
    if (out.expert) out.axes |= kExpertGrid;
    return out;
  });
}

// Coordinates of every rank by counting up like an odometer, the leftmost axis of the order first.
std::vector<std::map<std::string, int>> count_up(const Case& c, const std::vector<std::string>& words) {
  const int etp = c.config.expert_tp == 0 ? c.config.tp : c.config.expert_tp;
  std::map<std::string, int> sizes = {
      {"tp", c.expert ? etp : c.config.tp}, {"cp", c.expert ? 1 : c.config.cp}, {"ep", c.expert ? c.config.ep : 1}, {"pp", c.config.pp}};
  sizes["dp"] = c.world / (sizes["tp"] * sizes["cp"] * sizes["ep"] * sizes["pp"]);
  std::vector<std::map<std::string, int>> ranks;
  std::map<std::string, int> now = {{"tp", 0}, {"cp", 0}, {"ep", 0}, {"dp", 0}, {"pp", 0}};
  for (int r = 0; r < c.world; ++r) {
    ranks.push_back(now);
    for (const std::string& word : words) {
      if (++now[word] < sizes[word]) break;
      now[word] = 0;
    }
  }
  return ranks;
}

int tried = 0, laid_out = 0;

// Groups as the definition has them: ranks that differ along the chosen axes only.
void groups_are_right(const Case& c) {
  const auto grid = Grid::create(c.config, c.world);
  ++tried;
  laid_out += grid.ok() ? 1 : 0;
  if (!grid) {
    RC_ASSERT(grid.status().text().find("pp") != std::string::npos);
    RC_ASSERT(c.config.pp > 1);
    return;
  }
  RC_ASSERT(grid->check_axes(c.axes).ok());
  std::vector<std::string> words;
  std::istringstream order(c.config.order);
  for (std::string word; std::getline(order, word, '-');) words.push_back(word);
  const auto coords = count_up(c, words);
  // Sorting by coordinates, the last word of the order first, lists ranks with the leftmost axis fastest.
  using Key = std::vector<int>;
  std::map<Key, std::map<Key, int>> expected;
  for (int r = 0; r < c.world; ++r) {
    Key inside, outside;
    for (auto word = words.rbegin(); word != words.rend(); ++word)
      ((c.axes & kWords.at(*word)) != 0 ? inside : outside).push_back(coords[static_cast<size_t>(r)].at(*word));
    expected[outside][inside] = r;
  }
  std::vector<std::vector<int>> listed;
  for (const auto& [outside, members] : expected) {
    listed.emplace_back();
    for (const auto& [inside, rank] : members) listed.back().push_back(rank);
  }
  RC_ASSERT(grid->groups(c.axes) == listed);
  std::string json = "[";
  for (const auto& members : listed) json += text(json.size() > 1 ? "," : "", shown(members));
  RC_ASSERT(grid_groups_json(*grid, c.axes) == json + "]");

  std::multiset<int> everybody;
  for (const auto& members : listed) {
    RC_ASSERT(grid->size(c.axes) == static_cast<int>(members.size()));
    for (size_t i = 0; i < members.size(); ++i) {
      everybody.insert(members[i]);
      RC_ASSERT(grid->index(c.axes, members[i]) == static_cast<int>(i));
      RC_ASSERT(grid->group(c.axes, members[i]) == members);
    }
  }
  int next = 0;
  for (const int rank : everybody) RC_ASSERT(rank == next++);  // every rank once
  RC_ASSERT(next == c.world);
}

// Whatever is given is a grid or a refusal that names something of it.
void survives_anything() {
  GridConfig given;
  const auto number = rc::gen::oneOf(rc::gen::inRange(-2, 9), rc::gen::arbitrary<int>(), rc::gen::element(INT32_MAX, INT32_MIN, 1 << 20));
  given.tp = *number;
  given.cp = *number;
  given.ep = *number;
  given.pp = *number;
  given.expert_tp = *number;
  given.instances = *number;
  given.order = *rc::gen::oneOf(rc::gen::just(std::string("tp-cp-ep-dp-pp")), rc::gen::string<std::string>());
  const auto grid = Grid::create(given, *number);
  if (grid) {
    RC_ASSERT(grid->groups(kDp).size() * static_cast<size_t>(grid->size(kDp)) == static_cast<size_t>(grid->world()));
  } else {
    RC_ASSERT(grid.status().code() == Code::invalid);
    RC_ASSERT(!grid.status().text().empty());
  }
}

}  // namespace

int main() {
  set_property_runs(2000);
  refuses_bad_sizes();
  refuses_bad_orders();
  refuses_bad_axes();
  check(rc::check("groups are right", [] { groups_are_right(*any_case()); }), "groups");
  check(laid_out * 3 >= tried, text("only ", laid_out, " of ", tried, " grids were laid out"));
  check(rc::check("anything may be given", survives_anything), "anything");
  return finish();
}
