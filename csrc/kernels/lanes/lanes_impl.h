// Included after one of simd/*.h; KOKUBAN_VARIANT is the name of the table to define.
#include "kernels/lanes/lanes.h"

namespace {

template <typename Function>
KOKUBAN_INLINE void each(const float* x, float* out, int64_t count, Function f) {
    for (int64_t i = 0; i < count; i += kLanes) f_store(out + i, f(f_load(x + i)));
}

void exp_all(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) { return f_exp(v); });
}
void exp2_below_all(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) { return f_exp2_below(v); });
}
void tanh_all(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) { return f_tanh(v); });
}
void sigmoid_all(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) { return f_sigmoid(v); });
}
void reduce_add_all(const float* x, float* out, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) out[i / kLanes] = f_reduce_add(f_load(x + i));
}
void reduce_max_all(const float* x, float* out, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) out[i / kLanes] = f_reduce_max(f_load(x + i));
}
void through_bf16(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) {
        uint16_t some[kLanes];
        f_store_bf16(some, v);
        return f_load_bf16(some);
    });
}
void through_f16(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) {
        uint16_t some[kLanes];
        f_store_f16(some, v);
        return f_load_f16(some);
    });
}
void through_i32(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) { return f_from_i(i_from_f(v)); });
}
void first_five(const float* x, float* out, int64_t count) {
    each(x, out, count, [](F32 v) { return f_first_n(v, f_zero(), 5); });
}
void exchange_pairs(const float* x, float* out, int64_t count) {
    for (int64_t i = 0; i < count; i += 2 * kLanes) {
        F32 first, second;
        f_load_pairs(x + i, &first, &second);
        f_store_pairs(out + i, second, first);
    }
}

}  // namespace

const kokuban::LaneKernels kokuban::KOKUBAN_VARIANT{
    exp_all,      tanh_all,    sigmoid_all, reduce_add_all, reduce_max_all,
    through_bf16, through_f16, through_i32, first_five,     exchange_pairs, exp2_below_all,
};
