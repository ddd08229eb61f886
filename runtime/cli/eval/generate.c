#include "cli/eval/generate.h"

#include <stdio.h>

#include "cli/eval/random.h"

/* Of everyday words, each with many continuations, so that the filler does not become a loop that a model only repeats. */
static const char *const subjects[] = {"The baker",     "An old sailor", "The teacher", "A young girl", "The gardener",
                                       "My neighbour",  "The farmer",    "A tall man",  "The musician", "The shepherd",
                                       "A painter",     "The doctor",    "The miller",  "A traveller",  "Her brother",
                                       "The carpenter", "The captain",   "A small boy"};
static const char *const verbs[] = {"walked to",      "looked at",   "talked about", "thought of",
                                    "came back from", "sat beside",  "wrote about",  "dreamt of",
                                    "passed by",      "waited near", "sang about",   "stood before"};
static const char *const places[] = {"the stone bridge", "the quiet river", "the market",     "a green hill",
                                     "the wooden boat",  "the garden",      "the empty road", "the old mill",
                                     "the harbour",      "a yellow house",  "the tall trees", "the church"};
static const char *const times[] = {"in the morning",  "after the rain", "all afternoon", "before the evening",
                                    "in early spring", "that winter",    "for a while",   "once more",
                                    "on a Sunday",     "with a friend",  "at noon",       "in the cold wind"};
static const char *const names[SOQ__EVAL_TURNS_MAX] = {"Anna", "Peter", "Maria", "Jack"};

#define PICK(random, list) (list)[soq__random_below(random, sizeof(list) / sizeof(list)[0])]

/* Each draw has its own stream, so that none depends on how often others draw. */
enum stream { FILLER, KEYS, PLACES, ORDER };

static struct soq__random stream(uint64_t seed, enum stream which)
{
    struct soq__random r = {seed * 4 + which};

    r.state = soq__random_next(&r);
    return r;
}

static void put_sentence(struct soq__random *r, struct soq_buf *out)
{
    const char *subject = PICK(r, subjects), *verb = PICK(r, verbs), *place = PICK(r, places), *time = PICK(r, times);

    soq__buf_printf(out, "%s %s %s %s.", subject, verb, place, time);
}

static void begin(struct soq__eval_story *out)
{
    soq__buf_puts(&out->text, "There is important information hidden in the following text. Find it and remember it.\n\n");
}

void soq__eval_filler(uint64_t seed, uint32_t n_sentences, struct soq_buf *out)
{
    struct soq__random r = stream(seed, FILLER);

    for (uint32_t i = 0; i < n_sentences; i++) {
        soq__buf_puts(out, i ? " " : "");
        put_sentence(&r, out);
    }
}

void soq__eval_passkey(uint64_t seed, uint32_t n_sentences, uint32_t depth, struct soq__eval_story *out)
{
    struct soq__random filler = stream(seed, FILLER), keys = stream(seed * 101 + depth, KEYS);
    uint32_t key = 10000 + soq__random_below(&keys, 90000), place = (uint32_t)((uint64_t)n_sentences * depth / 100);

    begin(out);
    for (uint32_t i = 0; i <= n_sentences; i++) {
        if (i == place)
            soq__buf_printf(&out->text, "Remember this: the pass key is number %u. The pass key is number %u. ", key, key);
        if (i < n_sentences) {
            put_sentence(&filler, &out->text);
            soq__buf_puts(&out->text, " ");
        }
    }
    soq__buf_puts(&out->asks[0], "\n\nWhat is the pass key? The pass key is number");
    snprintf(out->answers[0], sizeof out->answers[0], " %u", key);
    out->n_turns = 1;
}

/* Fisher and Yates. */
static void shuffle(struct soq__random *r, uint32_t *order)
{
    for (uint32_t i = 0; i < SOQ__EVAL_TURNS_MAX; i++)
        order[i] = i;
    for (uint32_t i = SOQ__EVAL_TURNS_MAX - 1; i > 0; i--) {
        uint32_t k = soq__random_below(r, i + 1), other = order[k];

        order[k] = order[i];
        order[i] = other;
    }
}

void soq__eval_recall(uint64_t seed, uint32_t n_sentences, struct soq__eval_story *out)
{
    struct soq__random filler = stream(seed, FILLER), draws = stream(seed, KEYS), where = stream(seed, PLACES),
                       turns = stream(seed, ORDER);
    uint32_t order[SOQ__EVAL_TURNS_MAX], keys[SOQ__EVAL_TURNS_MAX], next = 0, place = 0;

    shuffle(&where, order); /* who comes when */
    for (uint32_t i = 0; i < SOQ__EVAL_TURNS_MAX; i++)
        keys[i] = 1000 + soq__random_below(&draws, 9000);
    begin(out);
    for (uint32_t i = 0; i <= n_sentences; i++) {
        if (i == place && next < SOQ__EVAL_TURNS_MAX) {
            uint32_t who = order[next++];

            soq__buf_printf(&out->text, "Remember this: the number of %s is number %u. The number of %s is number %u. ",
                            names[who], keys[who], names[who], keys[who]);
            place = (uint32_t)((uint64_t)n_sentences * next / SOQ__EVAL_TURNS_MAX);
        }
        if (i < n_sentences) {
            put_sentence(&filler, &out->text);
            soq__buf_puts(&out->text, " ");
        }
    }
    shuffle(&turns, order); /* who is asked for when */
    for (uint32_t i = 0; i < SOQ__EVAL_TURNS_MAX; i++) {
        soq__buf_printf(&out->asks[i], "%s The number of %s is number", i ? "." : "\n\nWhat are the numbers?", names[order[i]]);
        snprintf(out->answers[i], sizeof out->answers[i], " %u", keys[order[i]]);
    }
    out->n_turns = SOQ__EVAL_TURNS_MAX;
}

void soq__eval_story_done(struct soq__eval_story *story)
{
    soq__buf_done(&story->text);
    for (uint32_t i = 0; i < SOQ__EVAL_TURNS_MAX; i++)
        soq__buf_done(&story->asks[i]);
}
