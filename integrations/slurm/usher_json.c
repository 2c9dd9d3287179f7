// SPDX-License-Identifier: GPL-2.0-or-later
#include "usher_json.h"

#include <stdio.h>
#include <string.h>

/* Limit of the depth of objects and arrays, because the reader is recursive. */
#define DEPTH_MAX 16

static void append(struct json_text *text, const char *bytes, size_t length)
{
	if (text->full || length >= text->size - text->used) {
		text->full = true;
		return;
	}
	memcpy(text->bytes + text->used, bytes, length);
	text->used += length;
	text->bytes[text->used] = 0;
}

void json_raw(struct json_text *text, const char *raw)
{
	append(text, raw, strlen(raw));
}

void json_number(struct json_text *text, int64_t number)
{
	char digits[32];

	snprintf(digits, sizeof(digits), "%lld", (long long)number);
	json_raw(text, digits);
}

/* Returns the number of bytes of the UTF-8 character at the beginning of a
 * string; 0 if the bytes are no character. */
static size_t utf8_length(const unsigned char *at)
{
	size_t length = at[0] < 0x80   ? 1
			: at[0] < 0xc2 ? 0
			: at[0] < 0xe0 ? 2
			: at[0] < 0xf0 ? 3
			: at[0] < 0xf5 ? 4
				       : 0;

	for (size_t n = 1; n < length; n++)
		if ((at[n] & 0xc0) != 0x80)
			return 0;
	/* Overlong forms, surrogates, and numbers above U+10FFFF. */
	if ((at[0] == 0xe0 && at[1] < 0xa0) ||
	    (at[0] == 0xed && at[1] > 0x9f) ||
	    (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
		return 0;
	return length;
}

void json_string(struct json_text *text, const char *string)
{
	const unsigned char *at = (const unsigned char *)string;

	append(text, "\"", 1);
	while (*at && !text->full) {
		size_t length = utf8_length(at);
		char escaped[8];

		if (length == 0) {
			append(text, "?", 1);
			length = 1;
		} else if (*at < 0x20 || *at == 0x7f || *at == '"' ||
			   *at == '\\') {
			snprintf(escaped, sizeof(escaped), "\\u%04x", *at);
			append(text, escaped, 6);
		} else {
			append(text, (const char *)at, length);
		}
		at += length;
	}
	append(text, "\"", 1);
}

void json_cpus(struct json_text *text, const unsigned char *mask, size_t bytes)
{
	size_t bits = bytes * 8;
	const char *before = "\"";

	for (size_t first = 0; first < bits; first++) {
		size_t last = first;
		char range[64];

		if (!(mask[first / 8] >> (first % 8) & 1))
			continue;
		while (last + 1 < bits &&
		       (mask[(last + 1) / 8] >> ((last + 1) % 8) & 1))
			last++;
		if (last == first)
			snprintf(range, sizeof(range), "%s%zu", before, first);
		else
			snprintf(range, sizeof(range), "%s%zu-%zu", before,
				 first, last);
		json_raw(text, range);
		before = ",";
		first = last;
	}
	json_raw(text, *before == '"' ? "\"\"" : "\"");
}

/* The unread bytes of a reply. */
struct input {
	const char *at;
	const char *end;
};

static void skip_space(struct input *in)
{
	while (in->at < in->end && strchr(" \t\r\n", *in->at) && *in->at)
		in->at++;
}

static bool take(struct input *in, char expected)
{
	skip_space(in);
	if (in->at == in->end || *in->at != expected)
		return false;
	in->at++;
	return true;
}

/* Reads a string. Copies it into `copy`, if there is one: printable ASCII only,
 * and cut to the size of the buffer, because the text goes into a log. */
static bool read_string(struct input *in, char *copy, size_t size)
{
	size_t used = 0;

	if (size > 0)
		copy[0] = 0;
	if (!take(in, '"'))
		return false;
	while (in->at < in->end && *in->at != '"') {
		char c = *in->at++;

		if (c == '\\') {
			if (in->at == in->end)
				return false;
			c = *in->at++;
			if (c == 'u') {
				if (in->end - in->at < 4)
					return false;
				in->at += 4;
				c = '?';
			} else if (!strchr("\"\\/", c) || !c) {
				c = ' ';
			}
		} else if (c < 0x20 || c == 0x7f) {
			/* Also bytes of UTF-8, where `char` is signed. */
			c = '?';
		}
		if (used + 1 < size) {
			copy[used++] = c;
			copy[used] = 0;
		}
	}
	return take(in, '"');
}

static bool read_integer(struct input *in, int64_t *number)
{
	int64_t value = 0;
	const char *first;

	skip_space(in);
	first = in->at;
	while (in->at < in->end && *in->at >= '0' && *in->at <= '9') {
		if (value > (INT64_MAX - 9) / 10)
			return false;
		value = value * 10 + (*in->at++ - '0');
	}
	*number = value;
	return in->at > first;
}

static bool skip_value(struct input *in, int depth);

/* Skips the members of an object or an array, behind its opening bracket. */
static bool skip_members(struct input *in, char end, int depth)
{
	if (depth >= DEPTH_MAX)
		return false;
	if (take(in, end))
		return true;
	do {
		if (end == '}' && !(read_string(in, NULL, 0) && take(in, ':')))
			return false;
		if (!skip_value(in, depth + 1))
			return false;
	} while (take(in, ','));
	return take(in, end);
}

static bool skip_value(struct input *in, int depth)
{
	const char *first;

	skip_space(in);
	if (in->at < in->end && *in->at == '"')
		return read_string(in, NULL, 0);
	if (take(in, '{'))
		return skip_members(in, '}', depth);
	if (take(in, '['))
		return skip_members(in, ']', depth);
	/* A number, true, false or null. */
	first = in->at;
	while (in->at < in->end && *in->at &&
	       strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *in->at))
		in->at++;
	return in->at > first;
}

static bool read_parameters(struct input *in, struct json_reply *reply)
{
	char key[16];

	if (!take(in, '{'))
		return false;
	if (take(in, '}'))
		return true;
	do {
		if (!read_string(in, key, sizeof(key)) || !take(in, ':'))
			return false;
		skip_space(in);
		if (strcmp(key, "id") == 0) {
			if (!read_integer(in, &reply->id))
				return false;
			reply->has_id = true;
		} else if (strcmp(key, "reason") == 0 && in->at < in->end &&
			   *in->at == '"') {
			if (!read_string(in, reply->reason,
					 sizeof(reply->reason)))
				return false;
		} else if (!skip_value(in, 1)) {
			return false;
		}
	} while (take(in, ','));
	return take(in, '}');
}

/* Reads the name of an error, without the name of its interface. */
static bool read_error(struct input *in, struct json_reply *reply)
{
	char name[128];
	const char *last;

	if (!read_string(in, name, sizeof(name)))
		return false;
	last = strrchr(name, '.');
	snprintf(reply->error, sizeof(reply->error), "%.47s",
		 last ? last + 1 : name);
	if (!reply->error[0])
		snprintf(reply->error, sizeof(reply->error), "unknown error");
	return true;
}

bool json_read_reply(struct json_reply *reply, const char *bytes, size_t length)
{
	struct input in = {bytes, bytes + length};
	char key[16];

	memset(reply, 0, sizeof(*reply));
	if (!take(&in, '{'))
		return false;
	if (!take(&in, '}')) {
		do {
			bool read;

			if (!read_string(&in, key, sizeof(key)) ||
			    !take(&in, ':'))
				return false;
			skip_space(&in);
			if (strcmp(key, "parameters") == 0 && in.at < in.end &&
			    *in.at == '{')
				read = read_parameters(&in, reply);
			else if (strcmp(key, "error") == 0 && in.at < in.end &&
				 *in.at == '"')
				read = read_error(&in, reply);
			else
				read = skip_value(&in, 1);
			if (!read)
				return false;
		} while (take(&in, ','));
		if (!take(&in, '}'))
			return false;
	}
	skip_space(&in);
	return in.at == in.end;
}
