/* Our hook put into the text of a config.json, with the rest of it as it was to the byte. */
#ifndef AGC_SPLICE_H
#define AGC_SPLICE_H

#include "../error.h"
#include "../json.h"

/* Does a hook of any stage run this program already? */
bool has_hook(const struct json *config, const char *program);

/* The text with `program` as the last hook of these stages, to be freed; NULL with err. `text` is a valid JSON object. */
char *with_hook(const char *text, const char *program, const char *const *stages, struct error *err);

#endif
