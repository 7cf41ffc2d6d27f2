/* Loads the real library behind a shim and fills the table through which its functions are reached. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

extern const char *forwarded_names[] __attribute__((visibility("hidden"))); /* both are generated, see build.py */
extern void *forwarded[] __attribute__((visibility("hidden")));

void *null_real_function(const char *name) {
    static void *library;
    if (!library) library = dlopen(REAL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "null GPU: %s\n", dlerror());
        abort();
    }
    return dlsym(library, name);
}

__attribute__((constructor)) static void fill(void) {
    for (int place = 0; forwarded_names[place]; place++) forwarded[place] = null_real_function(forwarded_names[place]);
}
