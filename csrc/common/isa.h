// Which instruction sets this machine can run, by level. The order is that of
// kokuban.core.env.ISA_LEVELS: a level can run every variant of the levels below it.
#pragma once

namespace kokuban {

enum class Isa : int { kScalar = 0, kAvx2 = 1, kAvxVnni = 2, kAvx512 = 3, kAvx512Vnni = 4 };

// The best level that both the processor and the operating system allow.
Isa detect_isa();

// The level to use: the detected one, at most `cap` (an Isa as int; negative means no cap).
Isa capped_isa(int cap);

}  // namespace kokuban
