# -O3 unrolls the kernels; an -O2 in the user's CFLAGS, which come last, costs nothing that can be measured, since vectors are
# written out and loops are peeled by name. Contraction and reordering of sums stay off. GCC's -ftree-ter and -ftree-reassoc pull
# products away from their sums until the registers run out. Vector types wider than the machine's never cross a call, hence
# -Wno-psabi.
SOQ_CFLAG([CPU_CFLAGS], [-O3 -fpeel-loops -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-tree-ter -fno-tree-reassoc -Wno-psabi])
AC_SUBST([CPU_CFLAGS])

SOQ_PLUGIN([cpu], [auto], [the portable CPU backend], [])

# CPU_COMPILES(FLAGS, BODY): soq_missing where the host is no x86-64 or the compiler cannot build BODY with FLAGS.
AC_DEFUN([CPU_COMPILES], [
    AS_CASE([$host_cpu], [x86_64], [], [soq_missing="an x86-64 host"])
    soq_saved=$CFLAGS
    CFLAGS="$CFLAGS $1"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <immintrin.h>]], [$2])], [],
        [AS_IF([test -z "$soq_missing"], [soq_missing="a compiler with $1"])])
    CFLAGS=$soq_saved])

SOQ_PLUGIN([cpu-avx2], [auto], [the CPU backend for x86-64-v3 (AVX2, FMA, F16C)], [
    CPU_COMPILES([-march=x86-64-v3], [[__m256 x = _mm256_setzero_ps(); x = _mm256_fmadd_ps(x, x, x); (void)x;]])])
SOQ_PLUGIN([cpu-avx512], [auto], [the CPU backend for AVX-512 with VNNI], [
    CPU_COMPILES([-march=x86-64-v4 -mavx512vnni],
        [[__m256i x = _mm256_setzero_si256(); x = _mm256_dpbusd_epi32(x, x, x); (void)x;]])])
