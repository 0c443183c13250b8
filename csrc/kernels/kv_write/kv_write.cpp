#include "kernels/kv_write/kv_write.h"

#include "common/variants.h"

namespace kokuban {

const KvWriteKernels& kv_write_kernels(Isa isa) {
    return choose(isa, kv_write_scalar, kv_write_avx2, kv_write_avx512);
}

}  // namespace kokuban
