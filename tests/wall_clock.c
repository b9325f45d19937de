/* Loaded before the C library (LD_PRELOAD): the clock on the wall is set, as by a person or by NTP.
 *
 *   SPARKONCE_WALL_CLOCK  a file with seconds in it, as text; the clock is so far ahead of the right
 *                         time. Looked at again and again: a new number is a jump.
 *
 * Monotonic clocks go on. Where a process waits until a moment of its clock the kernel is asked to
 * wait until the same moment of the right one; such a moment is known by its size.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* Nothing monotonic shows thirty years. */
#define IS_WALL_TIME(seconds) ((seconds) > 1000000000L)

static long ahead(void) {
    static _Atomic long seconds = 0, looked_at = -1;
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    long tick = now.tv_sec * 10 + now.tv_nsec / 100000000;
    if (atomic_exchange(&looked_at, tick) != tick) {
        const char *path = getenv("SPARKONCE_WALL_CLOCK");
        int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            char text[32] = {0};
            if (read(file, text, sizeof text - 1) > 0) atomic_store(&seconds, atol(text));
            close(file);
        }
    }
    return atomic_load(&seconds);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += ahead();
    return failed;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told != NULL) *told = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

static struct timespec right(const struct timespec *until) {
    struct timespec moment = *until;
    if (IS_WALL_TIME(moment.tv_sec)) moment.tv_sec -= ahead();
    return moment;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *) = NULL;
    /* Without its version this is the one of before 2003, which takes another condition. */
    if (real == NULL) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (real == NULL) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moment = right(until);
    return real(condition, mutex, &moment);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict until) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *) = NULL;
    if (real == NULL) real = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec moment = right(until);
    return real(condition, mutex, &moment);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *) = NULL;
    if (real == NULL) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moment = right(until);
    return real(semaphore, &moment);
}
