// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Passes random changes of replies to the reader, and random masks and strings
 * to the writer: fuzz_reply CASES. Compiled with the address sanitizer, so that
 * an access outside a buffer is an error. Each case has a fixed seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../usher_json.h"

static const char *const replies[] = {
	"{\"parameters\":{\"id\":17,\"cpus\":\"0-3\"}}",
	"{\"error\":\"org.usher.Usher1.NotYours\",\"parameters\":{\"pid\":4,"
	"\"owner\":0}}",
	"{\"error\":\"org.usher.Usher1.BadArgument\",\"parameters\":{"
	"\"argument\":\"bounds\",\"reason\":\"the set is \\\"empty\\\" "
	"\\u00e4\"}}",
	"{\"a\":[[1,2.5e3,{\"b\":null}],true],\"parameters\":{\"id\":1}}",
	"[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
	"{}",
};

static unsigned int state;

static unsigned int next(unsigned int limit)
{
	state = state * 1664525u + 1013904223u;
	return (state >> 8) % limit;
}

static void read_changed(void)
{
	const char *reply = replies[next(sizeof(replies) / sizeof(*replies))];
	size_t length = strlen(reply);
	/* Exactly as large as the reply, so that reading behind it is found. */
	char *bytes = malloc(length + 1);
	struct json_reply read;

	memcpy(bytes, reply, length);
	for (unsigned int n = next(4); n > 0; n--)
		bytes[next((unsigned int)length)] =
			next(2) ? (char)next(256) : "{}[]\",:\\u0"[next(10)];
	length -= next(4) ? 0 : next((unsigned int)length + 1);
	bytes = realloc(bytes, length ? length : 1);
	json_read_reply(&read, bytes, length);
	if (strlen(read.error) >= sizeof(read.error) ||
	    strlen(read.reason) >= sizeof(read.reason))
		abort();
	free(bytes);
}

static void write_random(void)
{
	char buffer[64], string[32];
	unsigned char mask[16];
	struct json_text text = {buffer, 1 + next(sizeof(buffer)), 0, false};

	for (size_t n = 0; n < sizeof(string); n++)
		string[n] = (char)next(256);
	string[sizeof(string) - 1] = 0;
	for (size_t n = 0; n < sizeof(mask); n++)
		mask[n] = (unsigned char)next(256) & (unsigned char)next(256);
	json_string(&text, string);
	json_cpus(&text, mask, sizeof(mask));
	json_number(&text, (int64_t)next(1u << 20) - 1000);
	if (text.used >= text.size)
		abort();
}

int main(int argc, char **argv)
{
	long cases = argc > 1 ? atol(argv[1]) : 0;
	struct json_reply reply;

	if (!json_read_reply(&reply, replies[0], strlen(replies[0])) ||
	    !reply.has_id || reply.id != 17 || reply.error[0])
		return 1;
	if (!json_read_reply(&reply, replies[2], strlen(replies[2])) ||
	    strcmp(reply.error, "BadArgument") != 0 ||
	    strcmp(reply.reason, "the set is \"empty\" ?") != 0)
		return 2;
	for (long n = 0; n < cases; n++) {
		state = (unsigned int)n;
		read_changed();
		write_random();
	}
	return 0;
}
