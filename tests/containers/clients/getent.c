/* getent hosts|ahostsv4 NAME|ADDRESS: address and name on a line, by this C library; what images with musl have. */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST }, *found, *one;
	char address[NI_MAXHOST], name[NI_MAXHOST];

	if (argc != 3)
		return 1;
	hints.ai_family = strcmp(argv[1], "ahostsv4") ? AF_UNSPEC : AF_INET;
	snprintf(name, sizeof name, "%s", argv[2]);
	if (getaddrinfo(argv[2], NULL, &hints, &found) == 0) {
		if (getnameinfo(found->ai_addr, found->ai_addrlen, name, sizeof name, NULL, 0, NI_NAMEREQD))
			return 2;
	} else {
		hints.ai_flags = 0;
		if (getaddrinfo(argv[2], NULL, &hints, &found))
			return 2;
	}
	for (one = found; one; one = one->ai_next)
		if (getnameinfo(one->ai_addr, one->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST) == 0)
			printf("%-15s %s\n", address, name);
	return 0;
}
