/* Loaded before the C library (LD_PRELOAD): the first rename to some name waits.
 *
 *   SPARKONCE_RENAME_HELD_TO     how the new name ends
 *   SPARKONCE_RENAME_HELD        a file; made by the rename that waits, the only one that does
 *   SPARKONCE_RENAME_GOES        a file; when it exists, the rename is done
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int has_its_turn(const char *name) {
    const char *to = getenv("SPARKONCE_RENAME_HELD_TO");
    const char *held = getenv("SPARKONCE_RENAME_HELD");
    if (to == NULL || held == NULL) return 0;
    size_t length = strlen(name), end = strlen(to);
    if (length < end || strcmp(name + length - end, to) != 0) return 0;
    int made = open(held, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (made < 0) return 0;
    close(made);
    return 1;
}

int rename(const char *old, const char *name) {
    const char *goes = getenv("SPARKONCE_RENAME_GOES");
    if (goes != NULL && has_its_turn(name)) {
        while (access(goes, F_OK) != 0) usleep(10000);
    }
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return real(old, name);
}
