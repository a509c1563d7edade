/* A function of the C library in each of the three ways in which a library can reach one. */
#include <unistd.h>

typedef pid_t (*Function)(void);

pid_t call(void) { return getppid(); }

Function address(void) { return getpgrp; }

Function kept = (Function)getuid;
