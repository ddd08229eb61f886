/* The manifest of the plugin, and what it asks of the machine. */
#include <dirent.h>
#include <stdio.h>

#include "check/kit.h"
#include "plugin/needs.h"

/* Manifests beside the library that name it; several libraries have one each. */
static bool find_manifest(const struct soq__kit *kit, char path[PATH_MAX])
{
    const char *slash = strrchr(kit->library, '/');
    struct dirent *entry;
    bool found = false;
    DIR *dir;

    snprintf(path, PATH_MAX, "%.*s", (int)(slash - kit->library), kit->library);
    dir = opendir(path);
    while (dir && !found && (entry = readdir(dir))) {
        struct soq__manifest m = {0};
        struct soq_error err = SOQ_ERROR_INIT;
        size_t n = strlen(entry->d_name);

        if (n < 5 || strcmp(entry->d_name + n - 4, ".ini") != 0)
            continue;
        snprintf(path, PATH_MAX, "%.*s/%s", (int)(slash - kit->library), kit->library, entry->d_name);
        found = soq__manifest_read(path, &m, &err) == 0 && strcmp(m.library, slash + 1) == 0;
        soq__manifest_done(&m);
    }
    if (dir)
        closedir(dir);
    return found;
}

bool soq__kit_manifest(const struct soq__kit *kit, char path[PATH_MAX])
{
    if (!kit->manifest)
        return find_manifest(kit, path);
    snprintf(path, PATH_MAX, "%s", kit->manifest);
    return true;
}

void soq__kit_need_machine(struct soq__kit *kit)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__manifest m = {0};
    char path[PATH_MAX];

    if (!soq__kit_manifest(kit, path) || soq__manifest_read(path, &m, &err))
        return; /* load.manifest says what is wrong */
    if (soq__needs_met(&m, &err))
        soq__kit_skip(kit, "%s, which %s asks for", err.text, strrchr(path, '/') + 1);
    soq__manifest_done(&m);
}
