/* SPDX-License-Identifier: Apache-2.0
 * Text from the trained model. */
#ifndef GPT_SAMPLE_H
#define GPT_SAMPLE_H

#include "model.h"
#include "text.h"

/* Writes `count` bytes, drawn one by one at temperature 0.8 from the seed. 0, or what a hook returned. */
int sample_text(gpt_model* model, const corpus* text, uint64_t seed, const gpt_hooks* hooks, char* out, size_t count);

#endif
