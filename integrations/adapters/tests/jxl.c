/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tests usher_tasks_jxl.h: the rules of a parallel runner, and that libjxl
 * encodes and decodes the same as without threads.
 */
#include <jxl/decode.h>
#include <jxl/encode.h>
#include <stdatomic.h>
#include <string.h>
#include <usher_tasks_jxl.h>

#include "check.h"

#define SIDE 700
#define VALUES 3000
#define WORKERS 4

static const JxlPixelFormat format = {3, JXL_TYPE_UINT8, JXL_LITTLE_ENDIAN, 0};

/* ---- The rules of a parallel runner ---- */

struct calls {
	size_t threads;
	int inits;
	atomic_int of[VALUES];
	atomic_int running[WORKERS];
	atomic_int outside;
};

static JxlParallelRetCode init(void *arg, size_t threads)
{
	struct calls *calls = arg;

	calls->threads = threads;
	calls->inits++;
	return 0;
}

static JxlParallelRetCode failing_init(void *arg, size_t threads)
{
	(void)arg;
	(void)threads;
	return 42;
}

static void call(void *arg, uint32_t value, size_t thread)
{
	struct calls *calls = arg;

	CHECK(thread < calls->threads);
	CHECK(atomic_fetch_add(&calls->running[thread], 1) == 0);
	atomic_fetch_add(&calls->of[value], 1);
	if (!usher_tasks_current())
		atomic_fetch_add(&calls->outside, 1);
	atomic_fetch_sub(&calls->running[thread], 1);
}

/* Each number is processed once, by at most one call per thread number. */
static void test_rules(usher_tasks_runtime *runtime, size_t threads)
{
	static struct calls calls;
	const uint32_t start = 7;
	uint32_t value;

	memset(&calls, 0, sizeof(calls));
	CHECK(usher_tasks_jxl_run(runtime, &calls, init, call, start, VALUES) ==
	      0);
	CHECK(calls.inits == 1 && calls.threads == threads);
	for (value = 0; value < VALUES; value++)
		CHECK(calls.of[value] == (value >= start));
	CHECK(calls.outside == (runtime ? 0 : VALUES - (int)start));
	/* No number, and errors: nothing is processed. */
	CHECK(usher_tasks_jxl_run(runtime, &calls, init, call, 3, 3) == 0);
	CHECK(usher_tasks_jxl_run(runtime, &calls, init, call, 3, 2) ==
	      JXL_PARALLEL_RET_RUNNER_ERROR);
	CHECK(usher_tasks_jxl_run(runtime, &calls, failing_init, call, 0, 3) ==
	      42);
	CHECK(calls.inits == 1 && calls.of[0] == 0);
}

/* ---- libjxl ---- */

struct image {
	JxlParallelRunner runner;
	void *runtime;
	uint8_t *pixels;
	uint8_t *encoded;
	size_t bytes;
	uint8_t *decoded;
};

static void encode(struct image *image)
{
	JxlEncoder *encoder = JxlEncoderCreate(NULL);
	JxlEncoderFrameSettings *settings;
	size_t capacity = 8 << 20, left = capacity;
	JxlColorEncoding colors;
	JxlBasicInfo info;
	uint8_t *next;

	CHECK(encoder);
	if (image->runner)
		CHECK(JxlEncoderSetParallelRunner(encoder, image->runner,
						  image->runtime) ==
		      JXL_ENC_SUCCESS);
	JxlEncoderInitBasicInfo(&info);
	info.xsize = info.ysize = SIDE;
	info.bits_per_sample = 8;
	CHECK(JxlEncoderSetBasicInfo(encoder, &info) == JXL_ENC_SUCCESS);
	JxlColorEncodingSetToSRGB(&colors, JXL_FALSE);
	CHECK(JxlEncoderSetColorEncoding(encoder, &colors) == JXL_ENC_SUCCESS);
	settings = JxlEncoderFrameSettingsCreate(encoder, NULL);
	CHECK(JxlEncoderAddImageFrame(settings, &format, image->pixels,
				      3 * SIDE * SIDE) == JXL_ENC_SUCCESS);
	JxlEncoderCloseInput(encoder);
	next = image->encoded = malloc(capacity);
	CHECK(next);
	CHECK(JxlEncoderProcessOutput(encoder, &next, &left) ==
	      JXL_ENC_SUCCESS);
	image->bytes = capacity - left;
	JxlEncoderDestroy(encoder);
}

static void decode(struct image *image)
{
	JxlDecoder *decoder = JxlDecoderCreate(NULL);

	CHECK(decoder);
	if (image->runner)
		CHECK(JxlDecoderSetParallelRunner(decoder, image->runner,
						  image->runtime) ==
		      JXL_DEC_SUCCESS);
	CHECK(JxlDecoderSubscribeEvents(decoder, JXL_DEC_FULL_IMAGE) ==
	      JXL_DEC_SUCCESS);
	CHECK(JxlDecoderSetInput(decoder, image->encoded, image->bytes) ==
	      JXL_DEC_SUCCESS);
	JxlDecoderCloseInput(decoder);
	CHECK(JxlDecoderProcessInput(decoder) == JXL_DEC_NEED_IMAGE_OUT_BUFFER);
	image->decoded = malloc(3 * SIDE * SIDE);
	CHECK(image->decoded);
	CHECK(JxlDecoderSetImageOutBuffer(decoder, &format, image->decoded,
					  3 * SIDE * SIDE) == JXL_DEC_SUCCESS);
	CHECK(JxlDecoderProcessInput(decoder) == JXL_DEC_FULL_IMAGE);
	JxlDecoderDestroy(decoder);
}

static void encode_and_decode(void *arg)
{
	encode(arg);
	decode(arg);
}

static void check_equal(struct image *image, const struct image *expected)
{
	CHECK(image->bytes == expected->bytes);
	CHECK(!memcmp(image->encoded, expected->encoded, image->bytes));
	CHECK(!memcmp(image->decoded, expected->decoded, 3 * SIDE * SIDE));
	free(image->encoded);
	free(image->decoded);
}

int main(void)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(WORKERS);
	static uint8_t pixels[3 * SIDE * SIDE];
	struct image alone = {.pixels = pixels};
	usher_tasks_runtime *runtime;
	struct image image;
	size_t at;

	CHECK(usher_tasks_runtime_new(&options, &runtime) == USHER_TASKS_OK);
	test_rules(runtime, WORKERS);
	test_rules(NULL, 1);
	for (at = 0; at < sizeof(pixels); at++)
		pixels[at] = (uint8_t)(at * at / 977 + at % 3 * 40);
	encode_and_decode(&alone);
	/* From a thread outside, and as a task. */
	image = (struct image){
		usher_tasks_jxl_run, runtime, pixels, NULL, 0, NULL};
	encode_and_decode(&image);
	check_equal(&image, &alone);
	CHECK(usher_tasks_submit(runtime, encode_and_decode, &image, 0, 0) ==
	      USHER_TASKS_OK);
	CHECK(usher_tasks_wait(runtime, NULL) == USHER_TASKS_OK);
	check_equal(&image, &alone);
	free(alone.encoded);
	free(alone.decoded);
	CHECK(usher_tasks_runtime_destroy(runtime) == USHER_TASKS_OK);
	return 0;
}
