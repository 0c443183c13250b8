#include "kernels/merges/merges.h"

#include <cstring>
#include <stdexcept>

#include "bindings/bindings.h"

namespace kokuban {
namespace {

// `text` holds the pieces end to end, piece i of `lengths[i]` bytes. Pairs of int32 as bytes.
nb::bytes find_merges(nb::bytes text, Array<const int32_t, 1> lengths, Array<const uint8_t, 1> usable,
                      Array<const double, 1> scores) {
    if (usable.size() != lengths.size() || scores.size() != lengths.size()) {
        throw std::invalid_argument("lengths, usable and scores are for unlike numbers of pieces");
    }
    std::vector<std::string_view> pieces;
    pieces.reserve(lengths.size());
    size_t begin = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
        const auto length = static_cast<size_t>(lengths.data()[i]);
        if (lengths.data()[i] < 0 || length > text.size() - begin) throw std::out_of_range("a piece ends behind the text");
        pieces.emplace_back(text.c_str() + begin, length);
        begin += length;
    }
    std::vector<std::pair<int32_t, int32_t>> merges;
    {
        nb::gil_scoped_release release;
        merges = merges_by_score(pieces, usable.data(), scores.data());
    }
    static_assert(sizeof(merges[0]) == 2 * sizeof(int32_t));
    return nb::bytes(reinterpret_cast<const char*>(merges.data()), merges.size() * sizeof(merges[0]));
}

}  // namespace

void bind_merges(nb::module_& module) { module.def("find_merges", &find_merges); }

}  // namespace kokuban
