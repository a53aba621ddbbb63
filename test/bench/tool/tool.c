/* A tool of the fake SAN: hands its name and arguments to the bench, which is the SAN, and
 * prints what that answers. The start of a process is what it takes, and little more.
 *
 * Request: name and arguments, each with its NUL. Answer: exit code and length of standard
 * output, 4 bytes each in the machine's order, then standard output and standard error. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void all(int fd, const char *data, size_t size)
{
	for (ssize_t n; size > 0; data += n, size -= n)
		if ((n = write(fd, data, size)) <= 0)
			_exit(70);
}

int main(int argc, char **argv)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	char self[PATH_MAX], buffer[65536];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	int san = socket(AF_UNIX, SOCK_STREAM, 0);
	uint32_t head[2];

	if (n < 0)
		return 70;
	self[n] = 0;
	argv[0] = strrchr(self, '/') + 1;
	snprintf(to.sun_path, sizeof to.sun_path, "%.*s/.san", (int)(argv[0] - 1 - self), self);
	if (connect(san, (struct sockaddr *)&to, sizeof to) < 0) {
		perror(to.sun_path);
		return 70;
	}
	for (int i = 0; i < argc; i++)
		all(san, argv[i], strlen(argv[i]) + 1);
	shutdown(san, SHUT_WR);
	if (recv(san, head, sizeof head, MSG_WAITALL) != sizeof head)
		return 70;
	while ((n = read(san, buffer, sizeof buffer)) > 0) {
		ssize_t out = n < head[1] ? n : head[1];
		all(1, buffer, out);
		all(2, buffer + out, n - out);
		head[1] -= out;
	}
	return head[0];
}
