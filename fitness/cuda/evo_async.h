// evo_async.h, a part of evo.h: clusters, mbarriers, asynchronous copies and the rings that they fill.
#pragma once
#include "evo.h"

// --- clusters (addresses are 32-bit, in the shared window)

EVO_DEVICE unsigned evo_cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The same variable in the shared memory of the cluster's CTA number `rank`.
EVO_DEVICE unsigned evo_peer(unsigned address, unsigned rank) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

EVO_DEVICE float evo_peer_load(unsigned remote) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
    return value;
}

// Asynchronous store to a peer; when it lands, `barrier` (in the same peer) counts its 4 bytes.
EVO_DEVICE void evo_peer_store(unsigned remote, float value, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
                 "r"(__float_as_uint(value)), "r"(barrier)
                 : "memory");
}

// All threads of all CTAs of the cluster; what was written before `arrive` is visible after `wait`.
EVO_DEVICE void evo_cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
EVO_DEVICE void evo_cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// --- mbarriers

EVO_DEVICE void evo_barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the cluster and to the copy engine; a CTA or cluster barrier must follow.
EVO_DEVICE void evo_barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

EVO_DEVICE void evo_barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

EVO_DEVICE void evo_barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

EVO_DEVICE void evo_barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n\t.reg .pred done;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, done;\n\t}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}

// --- bulk copies, global to shared, that complete on an mbarrier of this CTA

// `bytes`, both addresses: multiples of 16.
EVO_DEVICE void evo_bulk_load(unsigned shared, const void* global, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Makes this thread's shared-memory accesses happen before later ones of the copy engine.
EVO_DEVICE void evo_copy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A whole warp has read a part of shared memory and gives it back to the thread that fills it by bulk copies; counts as
// one arrival. Without the fence the next copy was seen to land before the last one had been read.
EVO_DEVICE void evo_release(unsigned barrier) {
    evo_copy_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) evo_barrier_arrive(barrier);
}

// Shared to global, `bytes` and both addresses multiples of 16; a thread waits for the bulk stores that it committed.
EVO_DEVICE void evo_bulk_store(void* global, unsigned shared, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
                 : "memory");
}
EVO_DEVICE void evo_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most Pending groups have not been read from shared memory yet.
template <int Pending> EVO_DEVICE void evo_bulk_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// --- asynchronous 16-byte copies, global to shared; a thread waits for the groups that it committed

EVO_DEVICE void evo_async_load(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// The same, or 16 bytes of zeros where `there` is false; the pointer must be valid all the same.
EVO_DEVICE void evo_async_load(unsigned shared, const void* global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(there ? 16 : 0) : "memory");
}
EVO_DEVICE void evo_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most Pending groups are on their way.
template <int Pending> EVO_DEVICE void evo_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// A box of a two-dimensional tensor map; `column` is the innermost coordinate. `shared` is 128-byte aligned.
EVO_DEVICE void evo_tensor_load(unsigned shared, const CUtensorMap* map, int column, int row, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// --- programmatic dependent launch (`pdl` in the launch plan)

EVO_DEVICE void evo_pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
EVO_DEVICE void evo_pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
