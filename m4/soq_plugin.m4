# SOQ_PLUGIN(NAME, DEFAULT, HELP, NEEDS)
# --------------------------------------
# Declares the plugin NAME: the switch --enable-NAME=yes|no|auto (DEFAULT where it is not given), the automake conditional
# PLUGIN_<NAME> and a line in the summary that configure prints at its end. NEEDS is shell code that sets soq_missing to what
# is missing, in words, and leaves it empty where nothing is: then `auto` builds without the plugin and `yes` is fatal.
AC_DEFUN([SOQ_PLUGIN], [
    AC_ARG_ENABLE([$1], [AS_HELP_STRING([--enable-$1=yes|no|auto], [$3 @<:@$2@:>@])], [], [enable_[]AS_TR_SH([$1])=$2])
    soq_want=$enable_[]AS_TR_SH([$1])
    soq_missing=
    AS_CASE([$soq_want],
        [no], [],
        [yes|auto], [$4
:],
        [AC_MSG_ERROR([--enable-$1=$soq_want: say yes, no or auto])])
    AS_IF([test "$soq_want" = yes && test -n "$soq_missing"],
        [AC_MSG_ERROR([--enable-$1: $soq_missing is missing; install it, or use --disable-$1])])
    AS_IF([test "$soq_want" = no], [soq_state="no"],
        [test -n "$soq_missing"], [soq_state="no ($soq_missing is missing)"],
        [soq_state="yes"])
    AM_CONDITIONAL(m4_toupper([PLUGIN_]AS_TR_SH([$1])), [test "$soq_state" = yes])
    AS_VAR_APPEND([soq_summary], ["
    m4_format([%-24s], [$1])$soq_state"])
])

# SOQ_CFLAG(VARIABLE, FLAG...)
# ----------------------------
# Appends to VARIABLE each FLAG that the compiler knows.
AC_DEFUN([SOQ_CFLAG], [
    m4_foreach_w([soq_flag], [$2], [
        AS_VAR_PUSHDEF([cache], [soq_cv_cflag_]soq_flag)
        AC_CACHE_CHECK([whether $CC knows ]soq_flag, [cache], [
            soq_saved=$CFLAGS
            CFLAGS="$CFLAGS -Werror soq_flag"
            AC_COMPILE_IFELSE([AC_LANG_PROGRAM()], [AS_VAR_SET([cache], [yes])], [AS_VAR_SET([cache], [no])])
            CFLAGS=$soq_saved])
        AS_VAR_IF([cache], [yes], [AS_VAR_APPEND([$1], [" soq_flag"])])
        AS_VAR_POPDEF([cache])
    ])
])
