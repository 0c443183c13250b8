#include "kernels/attention/attention_sharing.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/attention/attention.h"

namespace kokuban {
namespace {

uint32_t hash_of(int32_t block) { return static_cast<uint32_t>(block) * 2654435769u; }

}  // namespace

const std::vector<SharedSplits>& SharingFinder::find(const std::vector<SharingCandidate>& candidates,
                                                     int64_t block_size, bool prefixes) {
    live_.clear();
    runs_.clear();
    chunks_.clear();
    found_.clear();
    next_.assign(candidates.size(), -1);
    run_of_.assign(candidates.size(), -1);
    slots_.resize(std::bit_ceil(2 * candidates.size() + 2));
    int32_t split = INT32_MAX, end = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
        if (candidates[i].first_split >= candidates[i].end_split) continue;
        live_.push_back(static_cast<int32_t>(i));
        split = std::min(split, candidates[i].first_split);
        end = std::max(end, candidates[i].end_split);
    }
    for (; split < end && live_.size() > 1; ++split) {
        group_split(candidates, split, block_size);
        extend_runs(candidates, split);
        if (prefixes) drop_singles();
    }
    for (const Run& run : runs_) {
        found_.push_back({run.first_split, run.end_split, run.count, chunks_.data() + run.first_chunk});
    }
    return found_;
}

void SharingFinder::group_split(const std::vector<SharingCandidate>& candidates, int32_t split,
                                int64_t block_size) {
    const int64_t begin = split * kSplit / block_size, last = ((split + 1) * kSplit - 1) / block_size;
    const size_t bytes = static_cast<size_t>(last + 1 - begin) * sizeof(int32_t), mask = slots_.size() - 1;
    std::fill(slots_.begin(), slots_.end(), -1);
    groups_.clear();
    for (const int32_t at : live_) {
        const SharingCandidate& candidate = candidates[static_cast<size_t>(at)];
        if (split < candidate.first_split || split >= candidate.end_split) continue;
        const int32_t* blocks = candidate.blocks + begin;
        next_[static_cast<size_t>(at)] = -1;
        for (size_t slot = hash_of(*blocks) & mask;; slot = (slot + 1) & mask) {
            if (slots_[slot] < 0) {
                slots_[slot] = static_cast<int32_t>(groups_.size());
                groups_.push_back({at, at, 1});
                break;
            }
            Group& group = groups_[static_cast<size_t>(slots_[slot])];
            const int32_t* others = candidates[static_cast<size_t>(group.first)].blocks + begin;
            if (std::memcmp(blocks, others, bytes) != 0) continue;
            next_[static_cast<size_t>(group.last)] = at;
            group.last = at;
            ++group.count;
            break;
        }
    }
}

// A group goes on with the run of its members when that ended just before this split and has no others.
void SharingFinder::extend_runs(const std::vector<SharingCandidate>& candidates, int32_t split) {
    for (const Group& group : groups_) {
        if (group.count < 2) continue;
        const int32_t run = run_of_[static_cast<size_t>(group.first)];
        bool same = run >= 0 && runs_[static_cast<size_t>(run)].end_split == split &&
                    runs_[static_cast<size_t>(run)].count == group.count;
        for (int32_t i = group.first; i >= 0 && same; i = next_[static_cast<size_t>(i)])
            same = run_of_[static_cast<size_t>(i)] == run;
        if (same) {
            runs_[static_cast<size_t>(run)].end_split = split + 1;
            continue;
        }
        runs_.push_back({split, split + 1, group.count, chunks_.size()});
        for (int32_t i = group.first; i >= 0; i = next_[static_cast<size_t>(i)]) {
            run_of_[static_cast<size_t>(i)] = static_cast<int32_t>(runs_.size()) - 1;
            chunks_.push_back(candidates[static_cast<size_t>(i)].chunk);
        }
    }
}

void SharingFinder::drop_singles() {
    live_.clear();
    for (const Group& group : groups_) {
        if (group.count < 2) continue;
        for (int32_t i = group.first; i >= 0; i = next_[static_cast<size_t>(i)]) live_.push_back(i);
    }
}

}  // namespace kokuban
