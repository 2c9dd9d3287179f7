// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A SPANK plugin for Slurm: gives the tasks of jobs to Usher's daemon on the
 * node, which assigns CPUs to them within the CPUs that Slurm has given them.
 *
 * Options of srun, sbatch and salloc: --usher=auto|off and
 * --usher-class=seat|background. A line of plugstack.conf:
 *
 *     optional /usr/lib/usher/spank_usher.so [default=auto] [socket=PATH]
 *         [timeout=MS]
 *
 * 1. When slurmstepd has forked a task and bound it, and before the task
 *    executes its program, slurm_spank_task_post_fork sends the task's pid, its
 *    user, its job and step, its command line and the CPUs of its affinity mask
 *    to the daemon. The tasks of a step are one program (a group).
 * 2. The daemon replies when the task has its CPUs. The program therefore
 *    creates its thread pools for the size of the seat.
 * 3. When the last task of the step has ended, the program is detached.
 *
 * Every function returns 0 in all cases, because a job must run even if Usher
 * fails. A function waits 40 ms at most (`timeout`). If a task has no reply in
 * time, or does not change its user in time, the other tasks of the step are
 * not attached, because each would delay the step again. A failure is one line
 * in slurmd's log.
 *
 * On login nodes (srun, sbatch, salloc) and in slurmd itself, the plugin only
 * registers its options. slurmstepd loads the plugin once per step; the
 * variables of this file therefore belong to one step.
 */
#define _GNU_SOURCE
/* The plugin is compiled with hidden symbols, because slurmstepd could have
 * functions of the same names. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
#pragma GCC visibility pop

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "usher_call.h"
#include "usher_json.h"

#pragma GCC visibility push(default)
SPANK_PLUGIN(usher, 1);
#pragma GCC visibility pop

/* The longest wait of a function, in milliseconds, and its largest value. Half
 * of it is the longest wait until a task runs as its user. */
#define BUDGET_MS 40
#define BUDGET_MS_MAX 10000
/* The kernel supports at most 8,192 CPUs. */
#define MASK_BYTES 1024
/* Tasks with larger numbers are not attached. */
#define TASKS_MAX 65536
/* Limits of the command line that is sent. */
#define WORDS_MAX 256
#define WORD_BYTES_MAX 8192
#define PATH_BYTES_MAX 4096
/* Enough for these limits, if each byte is written as \uXXXX. */
#define MESSAGE_BYTES_MAX (160 * 1024)

/* Numbers of <slurm/slurm.h>: no number, and the special steps. */
#define NO_NUMBER 0xfffffffeu
#define STEP_INTERACTIVE 0xfffffffau
#define STEP_BATCH 0xfffffffbu
#define STEP_EXTERN 0xfffffffcu

static struct {
	bool is_on;
	bool is_background;
	/* The options with an unknown value that was reported, as bits. */
	unsigned int reported;
	/* A task had no reply in time, or did not change its user in time: the
	 * other tasks are not attached. */
	bool gave_up;
	int budget_ms;
	char socket[108];
	/* The daemon's number of the program; -1: no task is attached. Another
	 * daemon may reuse the number. The group and the user therefore belong
	 * to the identity of the program, too. */
	int64_t program;
	char group[48];
	uid_t uid;
	/* The attached tasks, by their number on this node. */
	unsigned char attached[TASKS_MAX / 8];
	uint32_t running;
	char message[MESSAGE_BYTES_MAX];
} step = {.socket = "/run/usher/usher.varlink",
	  .budget_ms = BUDGET_MS,
	  .program = -1};

static int set_usher(int val, const char *value, int remote);
static int set_class(int val, const char *value, int remote);

static struct spank_option options[] = {
	{"usher", "auto|off",
	 "auto: let Usher assign CPUs to the tasks, within the CPUs of the job",
	 1, 0, set_usher},
	{"usher-class", "seat|background",
	 "background: run only while foreground programs do not need the CPUs",
	 1, 1, set_class},
};

/* Unknown values are reported on the node, where the administrator sees them.
 * slurmstepd passes each option twice; the second report is omitted. */
static int report_unknown_value(int val, const char *value, int remote)
{
	if (remote && !(step.reported & 1 << val))
		slurm_info("usher: --%s=%.32s is unknown and ignored",
			   options[val].name, value ? value : "");
	if (remote)
		step.reported |= 1 << val;
	return 0;
}

static int set_usher(int val, const char *value, int remote)
{
	if (value && strcmp(value, "auto") == 0)
		step.is_on = true;
	else if (value && strcmp(value, "off") == 0)
		step.is_on = false;
	else
		return report_unknown_value(val, value, remote);
	return 0;
}

static int set_class(int val, const char *value, int remote)
{
	if (value && strcmp(value, "background") == 0)
		step.is_background = true;
	else if (value && strcmp(value, "seat") == 0)
		step.is_background = false;
	else
		return report_unknown_value(val, value, remote);
	return 0;
}

/* Reads an argument of plugstack.conf. Returns false if it is unknown. */
static bool read_argument(const char *argument)
{
	if (strcmp(argument, "default=auto") == 0) {
		step.is_on = true;
	} else if (strcmp(argument, "default=off") == 0) {
		step.is_on = false;
	} else if (strncmp(argument, "socket=/", 8) == 0 &&
		   strlen(argument + 7) < sizeof(step.socket)) {
		strcpy(step.socket, argument + 7);
	} else if (strncmp(argument, "timeout=", 8) == 0) {
		char *end;
		long ms = strtol(argument + 8, &end, 10);

		if (*end || ms < 1 || ms > BUDGET_MS_MAX)
			return false;
		step.budget_ms = (int)ms;
	} else {
		return false;
	}
	return true;
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	spank_context_t context = spank_context();
	bool is_remote = context == S_CTX_REMOTE;

	if (!is_remote && context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
		return 0;
	for (int n = 0; n < ac; n++)
		if (!read_argument(argv[n]) && is_remote)
			slurm_info("usher: the argument %.64s of "
				   "plugstack.conf is unknown and ignored",
				   argv[n]);
	for (size_t n = 0; n < sizeof(options) / sizeof(options[0]); n++)
		spank_option_register(spank, &options[n]);
	return 0;
}

/* What the plugin knows about the task and its step. */
struct task {
	pid_t pid;
	uid_t uid;
	int number;
	uint32_t job;
	uint32_t id;
	uint32_t array_job;
	uint32_t array_task;
	unsigned char cpus[MASK_BYTES];
};

static bool is_attached(int number)
{
	return step.attached[number / 8] >> (number % 8) & 1;
}

/* Reads the job, the step and the task; returns false if the task is not to be
 * attached, or Slurm does not know it. */
static bool read_task(spank_t spank, struct task *task)
{
	if (spank_get_item(spank, S_TASK_PID, &task->pid) ||
	    spank_get_item(spank, S_TASK_ID, &task->number) ||
	    spank_get_item(spank, S_JOB_UID, &task->uid) ||
	    spank_get_item(spank, S_JOB_ID, &task->job) ||
	    spank_get_item(spank, S_JOB_STEPID, &task->id))
		return false;
	if (spank_get_item(spank, S_JOB_ARRAY_ID, &task->array_job) ||
	    spank_get_item(spank, S_JOB_ARRAY_TASK_ID, &task->array_task) ||
	    task->array_task >= NO_NUMBER)
		task->array_job = 0;
	/* The step `extern` contains only a process that sleeps. */
	return task->pid > 0 && task->id != STEP_EXTERN && task->number >= 0 &&
	       task->number < TASKS_MAX && !is_attached(task->number);
}

/* Returns whether all user ids of a process are `uid`. */
static bool runs_as(pid_t pid, uid_t uid)
{
	char path[32], status[2048];
	unsigned int ids[4];
	const char *line;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = read(fd, status, sizeof(status) - 1);
	close(fd);
	status[length > 0 ? length : 0] = 0;
	line = strstr(status, "\nUid:");
	if (!line || sscanf(line, "\nUid: %u %u %u %u", &ids[0], &ids[1],
			    &ids[2], &ids[3]) != 4)
		return false;
	return ids[0] == uid && ids[1] == uid && ids[2] == uid && ids[3] == uid;
}

/* slurmstepd calls the plugin when it has forked the task, which changes its
 * user at the same time. The daemon accepts only processes of the user. */
static bool await_user(const struct task *task)
{
	int64_t end_ms = call_now_ms() + step.budget_ms / 2;

	while (!runs_as(task->pid, task->uid)) {
		if (call_now_ms() >= end_ms)
			return false;
		poll(NULL, 0, 1);
	}
	return true;
}

/* Writes the job and its step as squeue prints them: 17.0, 17_3.batch. */
static void write_job(struct json_text *text, const struct task *task)
{
	char name[64], job[32], id[16];

	if (task->array_job)
		snprintf(job, sizeof(job), "%u_%u", task->array_job,
			 task->array_task);
	else
		snprintf(job, sizeof(job), "%u", task->job);
	if (task->id == STEP_BATCH)
		snprintf(id, sizeof(id), "batch");
	else if (task->id == STEP_INTERACTIVE)
		snprintf(id, sizeof(id), "interactive");
	else
		snprintf(id, sizeof(id), "%u", task->id);
	snprintf(name, sizeof(name), "%s.%s", job, id);
	json_string(text, name);
}

/* Writes the command line that the task is about to execute, from which the
 * daemon derives the program's profile. */
static void write_command(struct json_text *text, spank_t spank)
{
	char path[PATH_BYTES_MAX];
	char **argv = NULL;
	int argc = 0;
	size_t bytes = 0;

	if (spank_get_item(spank, S_JOB_ARGV, &argc, &argv) || !argv)
		argc = 0;
	json_raw(text, ",\"command\":{\"argv\":[");
	for (int n = 0; n < argc && n < WORDS_MAX && argv[n]; n++) {
		bytes += strlen(argv[n]);
		if (bytes > WORD_BYTES_MAX)
			break;
		json_raw(text, n ? "," : "");
		json_string(text, argv[n]);
	}
	/* Without words, the daemon would take slurmstepd for the program. */
	if (argc == 0 || bytes > WORD_BYTES_MAX)
		json_raw(text, text->bytes[text->used - 1] == '['
				       ? "\"slurm-task\""
				       : "");
	json_raw(text, "]");
	if (spank_getenv(spank, "PATH", path, sizeof(path)) ==
	    (spank_err_t)ESPANK_SUCCESS) {
		json_raw(text, ",\"path\":");
		json_string(text, path);
	}
	json_raw(text, "}");
}

static void write_attach(struct json_text *text, spank_t spank,
			 const struct task *task)
{
	json_raw(text, "{\"method\":\"org.usher.Usher1.Attach\","
		       "\"parameters\":{\"pid\":");
	json_number(text, task->pid);
	json_raw(text, ",\"uid\":");
	json_number(text, task->uid);
	json_raw(text, ",\"bounds\":");
	json_cpus(text, task->cpus, sizeof(task->cpus));
	snprintf(step.group, sizeof(step.group), "slurm:%u.%u", task->job,
		 task->id);
	json_raw(text, ",\"group\":");
	json_string(text, step.group);
	json_raw(text, ",\"job\":");
	write_job(text, task);
	if (step.is_background)
		json_raw(text, ",\"background\":\"usher\"");
	write_command(text, spank);
	json_raw(text, "}}");
}

static void report(const struct task *task, const char *what,
		   const char *reason)
{
	slurm_info("usher: job %u, task %d runs without Usher: %s%s%.160s",
		   task->job, task->number, what, reason[0] ? ": " : "",
		   reason);
}

static void attach(spank_t spank, const struct task *task, int64_t end_ms)
{
	struct json_text text = {step.message, sizeof(step.message), 0, false};
	struct json_reply reply;
	enum call_result result;

	write_attach(&text, spank, task);
	if (text.full) {
		report(task, "the request is too long", "");
		return;
	}
	result = call_daemon(step.socket, &text, end_ms, &reply);
	if (result != CALL_REPLIED) {
		step.gave_up = true;
		report(task, call_text(result), "");
		return;
	}
	if (reply.error[0] || !reply.has_id) {
		report(task,
		       reply.error[0] ? reply.error : "the reply has no id",
		       reply.reason);
		return;
	}
	step.program = reply.id;
	step.uid = task->uid;
	step.attached[task->number / 8] |= 1 << (task->number % 8);
	step.running++;
}

int slurm_spank_task_post_fork(spank_t spank, int ac, char *argv[])
{
	struct task task = {0};
	int64_t end_ms = call_now_ms() + step.budget_ms;

	(void)ac;
	(void)argv;
	if (!step.is_on || step.gave_up || spank_remote(spank) != 1 ||
	    !read_task(spank, &task))
		return 0;
	/* The mask that Slurm gave the task. S_JOB_ALLOC_CORES has abstract
	 * numbers, which are no numbers of the kernel. */
	if (sched_getaffinity(task.pid, sizeof(task.cpus),
			      (cpu_set_t *)(void *)task.cpus) < 0) {
		report(&task, "its affinity mask cannot be read", "");
		return 0;
	}
	if (!await_user(&task)) {
		step.gave_up = true;
		report(&task, "the task does not run as the user of the job",
		       "");
		return 0;
	}
	attach(spank, &task, end_ms);
	return 0;
}

/* Ends the management of the step's program. */
static void detach(void)
{
	struct json_text text = {step.message, sizeof(step.message), 0, false};
	struct json_reply reply;

	if (step.program < 0)
		return;
	json_raw(&text, "{\"method\":\"org.usher.Usher1.Detach\","
			"\"parameters\":{\"id\":");
	json_number(&text, step.program);
	json_raw(&text, ",\"group\":");
	json_string(&text, step.group);
	json_raw(&text, ",\"uid\":");
	json_number(&text, step.uid);
	json_raw(&text, "}}");
	step.program = -1;
	step.running = 0;
	/* No failure needs to be reported, because the daemon notices the end
	 * of a program by itself, too. */
	if (!text.full)
		call_daemon(step.socket, &text, call_now_ms() + step.budget_ms,
			    &reply);
}

int slurm_spank_task_exit(spank_t spank, int ac, char *argv[])
{
	int number;

	(void)ac;
	(void)argv;
	if (step.running == 0 || spank_remote(spank) != 1 ||
	    spank_get_item(spank, S_TASK_ID, &number) || number < 0 ||
	    number >= TASKS_MAX || !is_attached(number))
		return 0;
	step.attached[number / 8] &= ~(1 << (number % 8));
	if (--step.running == 0)
		detach();
	return 0;
}

int slurm_spank_exit(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	if (step.program >= 0 && spank_remote(spank) == 1)
		detach();
	return 0;
}
