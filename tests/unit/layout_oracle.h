// SPDX-License-Identifier: Apache-2.0
// A second, slow layout to compare the real one with. It does no arithmetic on ranges: it lays out an arena one element at a time, as a row
// of cells that each know what lies in them, and finds pieces and owned ranges by walking the row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/layout.h"

namespace megadp::test {

struct Cell {
  int param = -1;  // -1: gap or padding
  uint64_t element = 0;
  uint32_t bucket = 0;
};

struct OracleParam {
  uint64_t begin = 0, end = 0;
  uint32_t bucket = 0;
};

struct OracleLayout {
  std::vector<Cell> cells;
  std::vector<OracleParam> params;  // by index
  std::vector<uint64_t> bucket_begin, bucket_end, unpadded;
  std::vector<int> placed;  // in which order
};

inline OracleLayout oracle_layout(const std::vector<LayoutParam>& params, const LayoutRules& rules) {
  OracleLayout out;
  out.params.resize(params.size());
  uint32_t bucket = 0;
  uint64_t bucket_begin = 0;
  int in_bucket = 0;
  const auto fill = [&] { out.cells.push_back({-1, 0, bucket}); };
  const auto ends_well = [&](uint64_t end) {
    if (!rules.sharded) return true;
    return end % static_cast<uint64_t>(rules.shards) == 0 && end % 128 == 0 && (!rules.high_bandwidth_padding || end % 65536 == 0);
  };
  const auto close = [&] {
    out.unpadded.push_back(out.cells.size() - bucket_begin);
    while (!ends_well(out.cells.size())) fill();
    out.bucket_begin.push_back(bucket_begin);
    out.bucket_end.push_back(out.cells.size());
    bucket_begin = out.cells.size();
    in_bucket = 0;
    ++bucket;
  };
  for (int p = static_cast<int>(params.size()) - 1; p >= 0; --p) {
    const LayoutParam& param = params[static_cast<size_t>(p)];
    while (rules.sharded && out.cells.size() % 64 != 0) fill();
    if (rules.sharded && param.own_bucket && in_bucket > 0) close();
    OracleParam& place = out.params[static_cast<size_t>(p)];
    place.begin = out.cells.size();
    place.bucket = bucket;
    for (uint64_t e = 0; e < param.numel; ++e) out.cells.push_back({p, e, bucket});
    place.end = out.cells.size();
    ++in_bucket;
    out.placed.push_back(p);
    const bool full = out.cells.size() - bucket_begin >= rules.bucket_elements;
    if (full || (rules.sharded && param.own_bucket)) close();
  }
  if (in_bucket > 0) close();
  return out;
}

// Every shard's ranges: runs of one parameter's neighbouring elements among the cells that are the shard's.
inline std::vector<std::vector<OwnedRange>> oracle_owned(const OracleLayout& layout, int shards) {
  std::vector<std::vector<OwnedRange>> owned(static_cast<size_t>(shards));
  std::vector<uint64_t> passed(static_cast<size_t>(shards));  // cells of each shard so far
  for (uint64_t at = 0; at < layout.cells.size(); ++at) {
    const Cell& cell = layout.cells[at];
    const uint64_t begin = layout.bucket_begin[cell.bucket], length = layout.bucket_end[cell.bucket] - begin;
    const uint64_t shard = (at - begin) * static_cast<uint64_t>(shards) / length;
    const uint64_t in_shard = passed[shard]++;
    if (cell.param < 0) continue;
    std::vector<OwnedRange>& mine = owned[shard];
    const bool goes_on = !mine.empty() && mine.back().param == static_cast<size_t>(cell.param) && mine.back().end == at;
    if (!goes_on) mine.push_back({cell.bucket, static_cast<size_t>(cell.param), at, at, cell.element, in_shard});
    ++mine.back().end;
  }
  return owned;
}

}  // namespace megadp::test
