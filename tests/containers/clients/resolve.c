/* resolve NAME...: what getaddrinfo of this C library says, a line for each name. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *found, *one;
		int code = getaddrinfo(argv[i], NULL, &hints, &found);
		printf("%s", argv[i]);
		if (code) {
			printf(" %s\n", code == EAI_NONAME ? "no-name" : code == EAI_AGAIN ? "again" : gai_strerror(code));
			continue;
		}
		for (one = found; one; one = one->ai_next) {
			char text[INET6_ADDRSTRLEN];
			void *at = one->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)one->ai_addr)->sin_addr
			                                     : (void *)&((struct sockaddr_in6 *)one->ai_addr)->sin6_addr;
			printf(" %s", inet_ntop(one->ai_family, at, text, sizeof text));
		}
		printf("\n");
		freeaddrinfo(found);
	}
	return 0;
}
