/* Loaded before the C library (LD_PRELOAD): the kernel says once that an fsync has failed.
 *
 *   SPARKONCE_FSYNC_FAILS_UNDER  the first fsync of a descriptor whose path begins like this fails
 *   SPARKONCE_FSYNC_FAILS_WHEN   a path; before it exists no fsync fails (not set: from the start)
 *   SPARKONCE_FSYNC_FAILS_ONCE   a file; made by the fsync that fails, the only one that does
 *   SPARKONCE_FSYNC_FAILS_OF     "fsync" or "fdatasync": only this call fails (not set: both)
 *
 * The real fsync is not called then: what was to be synced is in the page cache, and perhaps
 * nowhere else.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int has_its_turn(int descriptor, const char *call) {
    const char *of = getenv("SPARKONCE_FSYNC_FAILS_OF");
    if (of != NULL && strcmp(of, call) != 0) return 0;
    const char *under = getenv("SPARKONCE_FSYNC_FAILS_UNDER");
    const char *when = getenv("SPARKONCE_FSYNC_FAILS_WHEN");
    const char *once = getenv("SPARKONCE_FSYNC_FAILS_ONCE");
    if (under == NULL || once == NULL) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path);
    if (length < (ssize_t)strlen(under) || strncmp(path, under, strlen(under)) != 0) return 0;
    if (when != NULL && access(when, F_OK) != 0) return 0;
    int made = open(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (made < 0) return 0;
    close(made);
    return 1;
}

static int synced(int descriptor, const char *call) {
    if (has_its_turn(descriptor, call)) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, call);
    return real(descriptor);
}

int fsync(int descriptor) { return synced(descriptor, "fsync"); }

int fdatasync(int descriptor) { return synced(descriptor, "fdatasync"); }
