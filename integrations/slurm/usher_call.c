// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The daemon may hang (SIGSTOP), be of another version, close the connection, or
 * send bytes one at a time. Therefore the socket does not block, each wait is a
 * poll with the rest of the time, the reply has a limit of bytes, and a write
 * to a closed connection sends no SIGPIPE. The descriptor is closed on exec,
 * because a task could otherwise inherit it.
 */
#define _GNU_SOURCE
#include "usher_call.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Limit of the bytes of a reply. A reply to Attach has less than 1 KiB. */
#define REPLY_BYTES_MAX 8192

const char *call_text(enum call_result result)
{
	switch (result) {
	case CALL_REPLIED:
		return "the daemon replied";
	case CALL_ABSENT:
		return "no daemon listens at the socket";
	case CALL_FULL:
		return "the daemon's socket is full";
	case CALL_FOREIGN:
		return "the socket belongs to a process of another user";
	case CALL_LATE:
		return "the daemon did not reply in time";
	case CALL_BROKEN:
		return "the daemon sent no valid reply";
	}
	return "";
}

int64_t call_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for an event on a descriptor. Returns 0 when it may have happened. */
static enum call_result await(int fd, short events, int64_t end_ms)
{
	struct pollfd polled = {.fd = fd, .events = events};
	int64_t left_ms = end_ms - call_now_ms();

	if (left_ms <= 0)
		return CALL_LATE;
	if (poll(&polled, 1, (int)left_ms) < 0 && errno != EINTR)
		return CALL_BROKEN;
	return CALL_REPLIED;
}

static enum call_result open_socket(const char *path, int *fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t length = sizeof(peer);

	if (strlen(path) >= sizeof(address.sun_path))
		return CALL_ABSENT;
	memcpy(address.sun_path, path, strlen(path));
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return CALL_ABSENT;
	if (connect(*fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return errno == EAGAIN ? CALL_FULL : CALL_ABSENT;
	if (getsockopt(*fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
		return CALL_BROKEN;
	if (peer.uid != 0 && peer.uid != geteuid())
		return CALL_FOREIGN;
	return CALL_REPLIED;
}

static enum call_result send_all(int fd, const struct json_text *message,
				 int64_t end_ms)
{
	/* The NUL behind the text ends the message. */
	size_t length = message->used + 1;
	size_t sent = 0;

	while (sent < length) {
		ssize_t now = send(fd, message->bytes + sent, length - sent,
				   MSG_NOSIGNAL);
		enum call_result waited;

		if (now >= 0) {
			sent += (size_t)now;
			continue;
		}
		if (errno != EAGAIN && errno != EINTR)
			return CALL_BROKEN;
		waited = await(fd, POLLOUT, end_ms);
		if (waited != CALL_REPLIED)
			return waited;
	}
	return CALL_REPLIED;
}

static enum call_result receive(int fd, struct json_reply *reply,
				int64_t end_ms)
{
	char bytes[REPLY_BYTES_MAX];
	size_t used = 0;

	for (;;) {
		enum call_result waited = await(fd, POLLIN, end_ms);
		const char *end;
		ssize_t now;

		if (waited != CALL_REPLIED)
			return waited;
		now = recv(fd, bytes + used, sizeof(bytes) - used, 0);
		if (now < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (now <= 0)
			return CALL_BROKEN;
		end = memchr(bytes + used, 0, (size_t)now);
		used += (size_t)now;
		if (end)
			return json_read_reply(reply, bytes,
					       (size_t)(end - bytes))
				       ? CALL_REPLIED
				       : CALL_BROKEN;
		if (used == sizeof(bytes))
			return CALL_BROKEN;
	}
}

enum call_result call_daemon(const char *path, const struct json_text *message,
			     int64_t end_ms, struct json_reply *reply)
{
	int fd = -1;
	enum call_result result = open_socket(path, &fd);

	if (result == CALL_REPLIED)
		result = send_all(fd, message, end_ms);
	if (result == CALL_REPLIED)
		result = receive(fd, reply, end_ms);
	if (fd >= 0)
		close(fd);
	return result;
}
