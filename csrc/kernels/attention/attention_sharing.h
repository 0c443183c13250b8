// Finds the splits that several requests of a step have in common: the same block ids at the same places
// of their tables (cascade attention). A prefix that one cache entry gave to all of them looks like this,
// and so does a tree of prefixes: each of its levels is a run of splits of its own.
//
// Costs one look into a hash table and one comparison of a split's block ids for each request and split.
// Without a window it ends at the first split that no two share: what is shared is a prefix there, since
// blocks are named by all tokens before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kokuban {

// A chunk that could share: its table, and the splits of which its rows see every key.
struct SharingCandidate {
    int32_t chunk;
    const int32_t* blocks;
    int32_t first_split, end_split;
};

// Splits [first_split, end_split) are the same memory for `count` chunks.
struct SharedSplits {
    int32_t first_split, end_split;
    int32_t count;
    const int32_t* chunks;  // ascending
};

class SharingFinder {
   public:
    // Runs in ascending order of their first split. They and their chunks live until the next call.
    // `prefixes`: who shares no split from some place on, shares none after it.
    const std::vector<SharedSplits>& find(const std::vector<SharingCandidate>& candidates,
                                          int64_t block_size, bool prefixes);

   private:
    // The candidates that have the same blocks in the split in hand, as a list.
    struct Group {
        int32_t first, last;
        int32_t count;
    };
    struct Run {
        int32_t first_split, end_split;
        int32_t count;
        size_t first_chunk;  // in chunks_
    };

    void group_split(const std::vector<SharingCandidate>& candidates, int32_t split, int64_t block_size);
    void extend_runs(const std::vector<SharingCandidate>& candidates, int32_t split);
    void drop_singles();

    std::vector<int32_t> live_;    // candidates
    std::vector<int32_t> next_;    // of each candidate: the next one of its group, or -1
    std::vector<int32_t> run_of_;  // of each candidate: the last run that it is in, or -1
    std::vector<int32_t> slots_;   // hash table: a group, or -1
    std::vector<Group> groups_;
    std::vector<Run> runs_;
    std::vector<int32_t> chunks_;
    std::vector<SharedSplits> found_;
};

}  // namespace kokuban
