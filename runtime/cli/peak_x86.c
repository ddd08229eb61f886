/* x86: dpbusd of VNNI, without it pmaddubsw; FMA. A function is compiled for its own instructions and only called where the
 * processor has them. pmaddubsw is followed by a sum in 16 bits, which is the least that any kernel can do with it; one that
 * has to widen its sums reaches less. */
#include "cli/peak.h"

#include <immintrin.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

#define INT_512(i) _mm512_set1_epi32((int)(i))
#define INT_256(i) _mm256_set1_epi32((int)(i))
#define FLOAT_512(i) _mm512_set1_ps((float)(i))
#define FLOAT_256(i) _mm256_set1_ps((float)(i))

#define DPBUSD_512(c, b) _mm512_dpbusd_epi32(c, c, b)
#define DPBUSD_256(c, b) _mm256_dpbusd_avx_epi32(c, c, b)
#define MADDUBS_256(c, b) _mm256_add_epi16(c, _mm256_maddubs_epi16(c, b))
#define FMA_512(c, b) _mm512_fmadd_ps(c, b, b)
#define FMA_256(c, b) _mm256_fmadd_ps(c, b, b)

#define LOW_INT_512(c) _mm512_cvtsi512_si32(c)
#define LOW_INT_256(c) _mm256_cvtsi256_si32(c)
#define LOW_FLOAT_512(c) _mm512_cvtss_f32(c)
#define LOW_FLOAT_256(c) _mm256_cvtss_f32(c)

#define CODES 0x01020304
#define TARGET(isa) __attribute__((target(isa)))

/* clang-format off */
SOQ__PEAK_KERNEL(TARGET("avx512f,avx512vnni"), int8_avx512vnni, __m512i, INT_512(CODES), INT_512, DPBUSD_512, LOW_INT_512)
SOQ__PEAK_KERNEL(TARGET("avx2,avxvnni"), int8_avxvnni, __m256i, INT_256(CODES), INT_256, DPBUSD_256, LOW_INT_256)
SOQ__PEAK_KERNEL(TARGET("avx2"), int8_avx2, __m256i, INT_256(CODES), INT_256, MADDUBS_256, LOW_INT_256)
SOQ__PEAK_KERNEL(TARGET("avx512f"), fp32_avx512f, __m512, FLOAT_512(0.5), FLOAT_512, FMA_512, LOW_FLOAT_512)
SOQ__PEAK_KERNEL(TARGET("avx2,fma"), fp32_fma, __m256, FLOAT_256(0.5), FLOAT_256, FMA_256, LOW_FLOAT_256)
/* clang-format on */

static const struct soq__peak_kernel int8_kernels[] = {
    {"avx512vnni", "avx512vnni", SOQ__PEAK_OPS(64), int8_avx512vnni},
    {"avxvnni", "avxvnni", SOQ__PEAK_OPS(32), int8_avxvnni},
    {"avx2", "avx2", SOQ__PEAK_OPS(32), int8_avx2},
};

static const struct soq__peak_kernel fp32_kernels[] = {
    {"avx512f", "avx512f", SOQ__PEAK_OPS(16), fp32_avx512f},
    {"fma", "x86-64-v3", SOQ__PEAK_OPS(8), fp32_fma},
};

const struct soq__peak_kernel *soq__peak_int8(size_t *count_out)
{
    *count_out = COUNT(int8_kernels);
    return int8_kernels;
}

const struct soq__peak_kernel *soq__peak_fp32(size_t *count_out)
{
    *count_out = COUNT(fp32_kernels);
    return fp32_kernels;
}
