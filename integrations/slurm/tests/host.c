// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Loads the plugin as slurmstepd does, and calls its functions on request:
 *
 *     host PLUGIN local|allocator|remote|slurmd [ARGUMENT...]
 *
 * Reads one command per line from its standard input, and answers each with one
 * line on its standard output:
 *
 *     uid UID, job JOB STEP, array JOB TASK   set items of the job
 *     argv WORD..., path PATH                 set the command line and PATH
 *     virtual                  time passes only in polls from now on
 *     late MS                  each poll ends so much later, as on a loaded machine
 *     option NAME VALUE        pass an option
 *     init, end                call slurm_spank_init, slurm_spank_exit
 *     fork TASK PID            call slurm_spank_task_post_fork
 *     exit TASK                call slurm_spank_task_exit
 *
 * The answer to a call is `rc=RC polls=N ms=MS fds=N log=TEXT`: the result, the
 * polls, the virtual time that they took, the number of open descriptors, and
 * the lines of the log. poll and clock_gettime replace the C library's.
 */
#define _GNU_SOURCE
#include <slurm/spank.h>

#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OPTIONS_MAX 4
#define WORDS_MAX 300

static void *plugin;
static spank_context_t context;
static int plugin_argc;
static char **plugin_argv;

static uid_t uid;
static uint32_t job = 17, step_id, array_job, array_task;
static char *words[WORDS_MAX + 1] = {"sleep", "600"};
static int word_count = 2;
static char path[4096] = "/usr/bin:/bin";
static int task_number = -1;
static pid_t task_pid;

static struct spank_option *options[OPTIONS_MAX];
static int option_count;
static char logged[4096];

static bool is_virtual;
static int64_t virtual_ms;
static int late_ms;
static int polls;

/* The symbols of the C library that the plugin finds here first. */

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (!is_virtual)
		return (int)syscall(SYS_clock_gettime, clock, now);
	now->tv_sec = 1000 + virtual_ms / 1000;
	now->tv_nsec = virtual_ms % 1000 * 1000000;
	return 0;
}

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	int ready;

	polls++;
	if (!is_virtual)
		return (int)syscall(SYS_poll, fds, count, timeout);
	ready = (int)syscall(SYS_poll, fds, count, 0);
	if (ready == 0)
		virtual_ms += timeout + late_ms;
	return ready;
}

/* The symbols of slurmstepd. */

spank_context_t spank_context(void)
{
	return context;
}

int spank_remote(spank_t spank)
{
	(void)spank;
	return context == S_CTX_REMOTE;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	if (option_count < OPTIONS_MAX)
		options[option_count++] = option;
	return (spank_err_t)ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer,
			 int size)
{
	(void)spank;
	if (strcmp(name, "PATH") != 0)
		return (spank_err_t)ESPANK_ENV_NOEXIST;
	snprintf(buffer, (size_t)size, "%s", path);
	return (spank_err_t)ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	spank_err_t result = (spank_err_t)ESPANK_SUCCESS;
	va_list list;

	(void)spank;
	va_start(list, item);
	switch (item) {
	case S_JOB_UID:
		*va_arg(list, uid_t *) = uid;
		break;
	case S_JOB_ID:
		*va_arg(list, uint32_t *) = job;
		break;
	case S_JOB_STEPID:
		*va_arg(list, uint32_t *) = step_id;
		break;
	case S_JOB_ARRAY_ID:
		*va_arg(list, uint32_t *) = array_job;
		break;
	case S_JOB_ARRAY_TASK_ID:
		*va_arg(list, uint32_t *) = array_task;
		break;
	case S_JOB_ARGV:
		*va_arg(list, int *) = word_count;
		*va_arg(list, char ***) = words;
		break;
	case S_TASK_ID:
		*va_arg(list, int *) = task_number;
		break;
	case S_TASK_PID:
		*va_arg(list, pid_t *) = task_pid;
		break;
	default:
		result = (spank_err_t)ESPANK_BAD_ARG;
	}
	va_end(list);
	return result;
}

void slurm_info(const char *format, ...)
{
	size_t used = strlen(logged);
	va_list list;

	va_start(list, format);
	vsnprintf(logged + used, sizeof(logged) - used - 1, format, list);
	va_end(list);
	strcat(logged, ";");
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = -1;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void answer(int rc, int polls_before, int64_t ms_before)
{
	printf("rc=%d polls=%d ms=%lld fds=%d log=%s\n", rc,
	       polls - polls_before, (long long)(virtual_ms - ms_before),
	       descriptors(), logged);
	logged[0] = 0;
}

static void call(const char *name)
{
	spank_f *function = (spank_f *)dlsym(plugin, name);
	int before = polls;
	int64_t ms = virtual_ms;

	if (!function) {
		printf("no %s\n", name);
		return;
	}
	answer(function(NULL, plugin_argc, plugin_argv), before, ms);
}

static void pass_option(const char *name, const char *value)
{
	for (int n = 0; n < option_count; n++) {
		int remote = context == S_CTX_REMOTE;

		if (strcmp(options[n]->name, name) != 0)
			continue;
		answer(options[n]->cb(options[n]->val, value, remote), polls,
		       virtual_ms);
		return;
	}
	printf("no option %s\n", name);
}

static void set_words(char *line)
{
	word_count = 0;
	for (char *word = strtok(line, " "); word && word_count < WORDS_MAX;
	     word = strtok(NULL, " "))
		words[word_count++] = strdup(word);
	words[word_count] = NULL;
}

static void obey(char *line)
{
	char name[64], value[128];

	if (sscanf(line, "uid %u", &uid) == 1 ||
	    sscanf(line, "job %u %u", &job, &step_id) == 2 ||
	    sscanf(line, "array %u %u", &array_job, &array_task) == 2 ||
	    sscanf(line, "late %d", &late_ms) == 1 ||
	    sscanf(line, "path %4095s", path) == 1) {
		puts("ok");
	} else if (strncmp(line, "argv", 4) == 0) {
		set_words(line + 4);
		puts("ok");
	} else if (strcmp(line, "virtual") == 0) {
		is_virtual = true;
		puts("ok");
	} else if (sscanf(line, "option %63s %127s", name, value) == 2) {
		pass_option(name, value);
	} else if (sscanf(line, "fork %d %d", &task_number, &task_pid) == 2) {
		call("slurm_spank_task_post_fork");
	} else if (sscanf(line, "exit %d", &task_number) == 1) {
		call("slurm_spank_task_exit");
	} else if (strcmp(line, "init") == 0) {
		call("slurm_spank_init");
	} else if (strcmp(line, "end") == 0) {
		call("slurm_spank_exit");
	} else {
		printf("unknown command %s\n", line);
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const char *const contexts[] = {"error", "local", "remote",
					       "allocator", "slurmd"};
	static char line[65536];

	if (argc < 3)
		return 2;
	for (int n = 0; n < 5; n++)
		if (strcmp(argv[2], contexts[n]) == 0)
			context = (spank_context_t)n;
	plugin_argc = argc - 3;
	plugin_argv = argv + 3;
	plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!plugin) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		obey(line);
	}
	return 0;
}
