/* Lets one file call of a process fail, or kill the process there. Loaded with LD_PRELOAD.

   Calls are counted while fault_at is not 0. The call with that number is left half done and kills
   the process, or fails with fault_errno. With fault_forever all later calls fail too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

long fault_at = 0, file_calls = 0;
int fault_errno = 0, fault_forever = 0;

static int fails(void)
{
    if (!fault_at)
        return 0;
    ++file_calls;
    return file_calls == fault_at || (fault_forever && file_calls > fault_at);
}

static int failure(void)
{
    if (!fault_errno)
        kill(getpid(), SIGKILL);
    errno = fault_errno;
    return -1;
}

#define CALL(name, parameters, arguments)                                                         \
    int name parameters                                                                           \
    {                                                                                             \
        static int(*real) parameters;                                                             \
        if (!real)                                                                                \
            real = dlsym(RTLD_NEXT, #name);                                                       \
        return fails() ? failure() : real arguments;                                              \
    }

#define WRITE(name, parameters, arguments, half)                                                  \
    ssize_t name parameters                                                                       \
    {                                                                                             \
        static ssize_t(*real) parameters;                                                         \
        if (!real)                                                                                \
            real = dlsym(RTLD_NEXT, #name);                                                       \
        if (!fails())                                                                             \
            return real arguments;                                                                \
        real half;                                                                                \
        return failure();                                                                         \
    }

WRITE(write, (int f, const void *b, size_t n), (f, b, n), (f, b, n / 2))
WRITE(pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), (f, b, n / 2, o))
WRITE(pwrite64, (int f, const void *b, size_t n, off64_t o), (f, b, n, o), (f, b, n / 2, o))
CALL(fsync, (int f), (f))
CALL(fdatasync, (int f), (f))
CALL(ftruncate, (int f, off_t n), (f, n))
CALL(ftruncate64, (int f, off64_t n), (f, n))
CALL(rename, (const char *a, const char *b), (a, b))
CALL(unlink, (const char *a), (a))
