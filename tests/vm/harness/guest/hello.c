/* /hello [SECONDS]: say hello, then stay for SECONDS */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	puts("hello");
	fflush(stdout);
	if (argc > 1)
		sleep(atoi(argv[1]));
	return 0;
}
