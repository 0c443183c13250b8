// The merges that a SentencePiece vocabulary's scores stand for. The face and its contract:
// kokuban.kernels.merges; what it means, in Python: kokuban.text.gguf_tokenizer.merges_by_score.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace kokuban {

// Pieces are UTF-8; `usable` says which of them may be joined and cut. Pairs of piece numbers: for
// every usable piece, best score first, each way to cut it between two characters into usable
// pieces, lowest left number first. Equal scores stay in the order of pieces.
//
// Throws std::invalid_argument when two pieces are equal or a score is not finite: no order is meant.
std::vector<std::pair<int32_t, int32_t>> merges_by_score(const std::vector<std::string_view>& pieces,
                                                         const uint8_t* usable, const double* scores);

}  // namespace kokuban
