// What follows from the sixteen-lane operations alone, and is the same text for every instruction
// set. Included at the end of scalar.h, avx2.h and avx512.h, never by itself.

namespace {

KOKUBAN_INLINE float bfloat16_to_float(uint16_t h) {
    const uint32_t bits = static_cast<uint32_t>(h) << 16;
    float r;
    memcpy(&r, &bits, 4);
    return r;
}

KOKUBAN_INLINE F32 f_load_bf16(const uint16_t* p) { return f_from_bits(i_shl<16>(i_load_u16(p))); }

// The 16 bits in the lower half of each lane: rounded to nearest even; NaN gives 0x7fc0.
KOKUBAN_INLINE I32 i_bf16_from_f(F32 a) {
    const I32 bits = i_from_bits(a);
    const I32 odd = i_and(i_shr<16>(bits), i_set1(1));
    return i_where_nan(a, i_set1(0x7fc0), i_shr<16>(i_add(i_add(bits, i_set1(0x7fff)), odd)));
}
KOKUBAN_INLINE void f_store_bf16(uint16_t* p, F32 a) { i_store_u16(p, i_bf16_from_f(a)); }

// Sixteen pairs of bf16, as in a K tile: the even (first) and the odd (second) element of each.
KOKUBAN_INLINE F32 f_bf16_first(I32 pairs) { return f_from_bits(i_shl<16>(pairs)); }
KOKUBAN_INLINE F32 f_bf16_second(I32 pairs) { return f_from_bits(i_and(pairs, i_set1(static_cast<int32_t>(0xffff0000u)))); }

// The e4m3 code of each lane (no infinities; 448 is the largest), as a signed byte: rounded to
// nearest even. The lanes are finite and below 464, half a step above 448.
//
// Below 2^-6, the smallest normal number, codes are multiples of 2^-9; from there on they are the
// upper bits of the float with another bias. One of the two parts stays at its end.
KOKUBAN_INLINE I32 i_e4m3_from_f(F32 x) {
    const F32 size = f_abs(x), least = f_set1(0.015625f);
    const I32 small = i_from_f(f_mul(f_min(size, least), f_set1(512.0f)));
    const I32 bits = i_from_bits(f_max(size, least)), odd = i_and(i_shr<20>(bits), i_set1(1));
    const I32 large = i_shr<20>(i_add(i_add(bits, i_set1(0x7ffff)), odd));
    const I32 code = i_add(small, i_sub(large, i_set1((120 << 3) + 8)));
    return i_sub(code, i_and(i_shr<24>(i_from_bits(x)), i_set1(0x80)));
}

// e^x, within 2 units in the last place from -87.3 to 88.3; below it stays at 1.2e-38, above at
// 2.4e38. NaN gives NaN; e^0 is exactly 1.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial of degree 6 (Taylor's coefficients
// corrected to the interval), and 2^n through the exponent bits.
KOKUBAN_INLINE F32 f_exp(F32 x) {
    const F32 low = f_set1(-87.33654475f), high = f_set1(88.3762626647949f);
    // f_max gives its second operand for NaN: x stays there so that NaN goes through.
    const F32 bounded = f_min(high, f_max(low, x));
    const I32 n = i_from_f(f_mul(bounded, f_set1(1.44269504088896341f)));
    const F32 nf = f_from_i(n);
    F32 r = f_fnma(nf, f_set1(0.693359375f), bounded);
    r = f_fnma(nf, f_set1(-2.12194440e-4f), r);
    F32 p = f_set1(1.9875691500e-4f);
    p = f_fma(p, r, f_set1(1.3981999507e-3f));
    p = f_fma(p, r, f_set1(8.3334519073e-3f));
    p = f_fma(p, r, f_set1(4.1665795894e-2f));
    p = f_fma(p, r, f_set1(1.6666665459e-1f));
    p = f_fma(p, r, f_set1(5.0000001201e-1f));
    p = f_add(f_fma(p, f_mul(r, r), r), f_set1(1.0f));
    return f_mul(p, f_from_bits(i_shl<23>(i_add(n, i_set1(127)))));
}

// 2^x for x <= 0, within 2 units in the last place from -126 on; below it stays at 2^-126. NaN gives NaN;
// 2^0 is exactly 1. Some two thirds of the work of f_exp.
//
// x = n + r with |r| <= 1/2: the sum with 1.5 * 2^23 + 127 has n + 127 in its lowest bits, which are those of
// 2^n's exponent. 2^r by a polynomial of degree 5 (least relative error, 1 kept at 0).
KOKUBAN_INLINE F32 f_exp2_below(F32 x) {
    const F32 round = f_set1(12583039.0f), bounded = f_max(f_set1(-126.0f), x);
    const F32 sum = f_add(bounded, round), r = f_sub(bounded, f_sub(sum, round));
    F32 p = f_set1(1.3264727313e-3f);
    p = f_fma(p, r, f_set1(9.6715129912e-3f));
    p = f_fma(p, r, f_set1(5.5507335812e-2f));
    p = f_fma(p, r, f_set1(2.4022242427e-1f));
    p = f_fma(p, r, f_set1(6.9314700365e-1f));
    p = f_fma(p, r, f_set1(1.0f));
    return f_mul(p, f_from_bits(i_shl<23>(i_from_bits(sum))));
}

// 1 / (1 + e^-x)
KOKUBAN_INLINE F32 f_sigmoid(F32 x) {
    const F32 one = f_set1(1.0f);
    return f_div(one, f_add(one, f_exp(f_sub(f_zero(), x))));
}

// tanh x = 1 - 2 / (e^2x + 1); absolute error below 2e-7.
KOKUBAN_INLINE F32 f_tanh(F32 x) {
    const F32 one = f_set1(1.0f);
    return f_sub(one, f_div(f_set1(2.0f), f_add(f_exp(f_add(x, x)), one)));
}

}  // namespace
