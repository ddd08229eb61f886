/* Error codes and messages, shared by the embedding API (soquete.h) and the plugin ABI (plugin.h).
 *
 * Every fallible call returns 0 or a negative code, -SOQ_E..., and fills the caller's struct soq_error with a message that
 * names the file, key, field or op, the value, and what to do. The first detector writes the message, callers pass it on. */
#ifndef SOQUETE_ERROR_H
#define SOQUETE_ERROR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text): the one list of codes. Values are ABI: append only. */
#define SOQ_ERRORS(X)                                                                                                          \
    X(SOQ_EINVAL, 1, "invalid argument")                                                                                       \
    X(SOQ_ENOMEM, 2, "out of memory")                                                                                          \
    X(SOQ_EUNSUPPORTED, 3, "unsupported")                                                                                      \
    X(SOQ_EIO, 4, "input/output error")                                                                                        \
    X(SOQ_ECORRUPT, 5, "corrupt data")                                                                                         \
    X(SOQ_ENOTFOUND, 6, "not found")                                                                                           \
    X(SOQ_EBUSY, 7, "busy")                                                                                                    \
    X(SOQ_ECANCELLED, 8, "cancelled")                                                                                          \
    X(SOQ_ELIMIT, 9, "limit exceeded")                                                                                         \
    X(SOQ_EDEVICE, 10, "device lost")                                                                                          \
    X(SOQ_EABI, 11, "incompatible ABI")                                                                                        \
    X(SOQ_EINTERNAL, 12, "internal error")

enum soq_error_code {
#define SOQ_ERROR_ENUM(name, value, text) name = value,
    SOQ_ERRORS(SOQ_ERROR_ENUM)
#undef SOQ_ERROR_ENUM
};

#define SOQ_ERROR_TEXT_MAX 1000

/* Owned by the caller; set struct_size before the call (SOQ_ERROR_INIT does). text is always NUL-terminated UTF-8. */
struct soq_error {
    uint32_t struct_size;
    int32_t code; /* the negative code that the call returned, 0 if none */
    char text[SOQ_ERROR_TEXT_MAX];
};

#ifdef __cplusplus
}

/* A T of this size, else zero. */
template <class T> inline T soq_sized()
{
    T t = T();

    t.struct_size = static_cast<uint32_t>(sizeof t);
    return t;
}
#define SOQ_SIZED(type) soq_sized<struct type>()
#else
#define SOQ_SIZED(type)                                                                                                        \
    {                                                                                                                          \
        .struct_size = (uint32_t)sizeof(struct type)                                                                           \
    }
#endif

/* The struct with its size set and all else zero; the other SOQ_..._INIT are the same. */
#define SOQ_ERROR_INIT SOQ_SIZED(soq_error)

#endif
