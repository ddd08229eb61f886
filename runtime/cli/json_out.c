/* JSON lines. */
#include "cli/json_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "cli/out.h"

json_t *soq__json_text(const char *data, size_t n)
{
    struct soq_buf clean = SOQ_BUF_INIT;
    json_t *json = NULL;

    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = soq__utf8_decode(data + i, n - i, &cp);

        if (len)
            soq__buf_append(&clean, data + i, len);
        else
            soq__buf_puts(&clean, "\xEF\xBF\xBD");
        i += len ? len : 1;
    }
    if (soq__buf_ok(&clean))
        json = json_stringn(soq__buf_str(&clean), clean.len);
    soq__buf_done(&clean);
    return json;
}

json_t *soq__json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

int soq__json_line(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    int rc = -1;

    json_decref(json);
    if (text)
        rc = soq__out_printf("%s\n", text);
    free(text);
    return rc;
}

int soq__json_error(int rc, const struct soq_error *err)
{
    return soq__json_line(json_pack("{ss ss so}", "event", "error", "code", soq__error_text(rc), "message",
                                    soq__json_text(err->text, strlen(err->text))));
}
