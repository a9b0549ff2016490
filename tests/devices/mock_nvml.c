/*
 * A small libnvidia-ml.so.1 that answers from tables in gpus.h, which the test writes from a captured machine.
 *
 * Only the calls and the structures that the agent uses, in the sizes of the driver's own header. -DLACKS_<GROUP> leaves
 * calls out that an older driver does not have. In the environment: MOCK_INIT is the code that starting answers, MOCK_LOST
 * the index of a GPU that answers "is lost" to everything.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, LOST = 15, VERSION_MISMATCH = 25 };

struct gpu {
    const char *uuid, *name, *bus;
    unsigned minor;
    unsigned long long memory, cpus[4], nodes;
    int numa_node, mig, has_fabric;
    unsigned state, status, clique, health_mask;
    unsigned char health_summary, cluster[16];
    unsigned failed_rows, links, active_links;
};

#include "gpus.h"

typedef const struct gpu *handle;

#define ALIVE(h) do { const char *l = getenv("MOCK_LOST"); if (l && (h) == &GPUS[atoi(l)]) return LOST; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; const char *c = getenv("MOCK_INIT"); return c ? atoi(c) : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "an error of the mock"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", DRIVER); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { snprintf(out, size, "%s", LIBRARY); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = CUDA; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = COUNT; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *out) {
    if (index >= COUNT) return INVALID_ARGUMENT;
    ALIVE(&GPUS[index]);
    *out = &GPUS[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(handle h, char *out, unsigned size) { ALIVE(h); snprintf(out, size, "%s", h->uuid); return SUCCESS; }
int nvmlDeviceGetName(handle h, char *out, unsigned size) { ALIVE(h); snprintf(out, size, "%s", h->name); return SUCCESS; }
int nvmlDeviceGetMinorNumber(handle h, unsigned *out) { ALIVE(h); *out = h->minor; return SUCCESS; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };

int nvmlDeviceGetPciInfo_v3(handle h, struct pci *out) {
    ALIVE(h);
    memset(out, 0, sizeof *out);
    snprintf(out->address, sizeof out->address, "%s", h->bus);
    return SUCCESS;
}

struct memory { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(handle h, struct memory *out) {
    ALIVE(h);
    if (h->memory == 0) return NOT_SUPPORTED;
    out->total = h->memory, out->free = h->memory, out->used = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(handle h, unsigned *now, unsigned *pending) { ALIVE(h); *now = *pending = h->mig; return SUCCESS; }

int nvmlDeviceGetRemappedRows(handle h, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    ALIVE(h);
    *c = *u = *pending = 0, *failed = h->failed_rows;
    return SUCCESS;
}

#ifndef LACKS_AFFINITY
int nvmlDeviceGetCpuAffinityWithinScope(handle h, unsigned words, unsigned long *out, unsigned scope) {
    ALIVE(h);
    (void)scope;
    for (unsigned at = 0; at < words; at++) out[at] = at < 4 ? h->cpus[at] : 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryAffinity(handle h, unsigned words, unsigned long *out, unsigned scope) {
    ALIVE(h);
    (void)scope;
    for (unsigned at = 0; at < words; at++) out[at] = at == 0 ? h->nodes : 0;
    return SUCCESS;
}
#endif

#ifndef LACKS_NUMA
int nvmlDeviceGetNumaNodeId(handle h, unsigned *out) {
    ALIVE(h);
    if (h->numa_node < 0) return NOT_SUPPORTED;
    *out = h->numa_node;
    return SUCCESS;
}
#endif

#ifndef LACKS_FABRIC
struct fabric {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, health_mask;
    unsigned char health_summary;
};

int nvmlDeviceGetGpuFabricInfoV(handle h, struct fabric *out) {
    ALIVE(h);
    unsigned version = out->version;
    if (version != 0x02000024 && version != NEWEST_FABRIC) return VERSION_MISMATCH;
    if (!h->has_fabric) return NOT_SUPPORTED;
    memcpy(out->cluster, h->cluster, 16);
    out->status = h->status, out->clique = h->clique, out->state = h->state, out->health_mask = h->health_mask;
    if (version == 0x03000028) out->health_summary = h->health_summary;
    return SUCCESS;
}
#endif

int nvmlDeviceGetNvLinkState(handle h, unsigned link, unsigned *out) {
    ALIVE(h);
    if (link >= h->links) return INVALID_ARGUMENT;
    *out = link < h->active_links;
    return SUCCESS;
}

#ifndef LACKS_PLATFORM
struct platform { unsigned version; char guid[16], chassis[16]; unsigned char slot, tray, host, peer, module; };

int nvmlDeviceGetPlatformInfo(handle h, struct platform *out) {
    ALIVE(h);
    if (CHASSIS[0] == 0) return NOT_SUPPORTED;
    memcpy(out->chassis, CHASSIS, 16);
    return SUCCESS;
}
#endif
