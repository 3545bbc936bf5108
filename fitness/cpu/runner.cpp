// The trusted runner: maps what its parent made, locks itself down, then calls candidates' code for as long as it lives.
//
// evo-cpu-runner ORDERS REPORT INPUTS OUTPUTS CODE WORKERS OUTPUTS_BYTES INPUTS_BYTES CODE_BYTES
// The first five are file descriptors of memfds. The parent alone writes orders, inputs and code; what is mapped here:
//   orders   read-only   the command word, the table of steps, what outputs the calls have
//   report   read-write  how far the workers are, and why they died
//   inputs   read-only   outputs  read-write (scratch too)      code  read-execute, preceded by a page of jumps
// After lock-down the only system calls are futex-wait on the command word and exit_group; any other kills the process.
// Nothing here reads a clock: rdtsc traps, and time is the parent's business. Of inputs and outputs only the bytes that
// the present layout uses are mapped. The parent starts a fresh process for every layout.
//
// What this does not stop: a candidate, its opponent and the oracle of one case run in one process. Machine code written
// to attack this very file can find `report` and the stack of `serve`, announce its arrival early, or stay and run the
// others its own way until the parent ends the process. The parent refuses a meeting count that the workers cannot have
// made; a careful forger passes that. What cannot be forged from here: clock, inputs, code, and the parent's own checks.
//
// Work is dealt statically: block b of a step goes to worker b % WORKERS, so who runs what does not depend on luck. All
// workers meet after every step; the meeting count in `report` is what the parent's clock watches.
//
// Timed blocks make the same calls again and again. So that none of them can find its work done, whoever comes last to
// the end of a call flips low bits of a few elements of its outputs, before the others go on; not at the end of a slot's
// last call, whose outputs the parent compares. A number with other low bits looks like a right one until it is computed.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

// Layouts and addresses that runner.py and machine.py know too; they pass the numbers as macros.
struct Step {
    uint64_t entry;
    int64_t items, block;
    uint64_t words[EVO_MAX_WORDS];
    double floats[EVO_MAX_FLOATS];
};

struct Output {
    unsigned char* data;
    uint64_t elements, itemsize;
};

struct Orders {
    uint32_t command;  // a new value is a new command; the workers sleep on it
    uint32_t fresh;    // code was written since the last command
    uint32_t first, count, calls;  // `count` calls from number `first`, going round after `calls`
    uint32_t only_spoil;           // 1: do not call, only spoil the outputs of these calls
    uint64_t key;                  // of what is spoiled; 0: nothing is
    uint32_t padding[8];
    uint32_t start[EVO_MAX_CALLS + 1];         // call i is steps start[i] to start[i + 1]
    uint32_t output_start[EVO_MAX_CALLS + 1];  // and has outputs output_start[i] to output_start[i + 1]
    alignas(64) Step steps[EVO_MAX_STEPS];
    alignas(64) Output outputs[EVO_MAX_OUTPUTS];
};

struct Report {
    uint32_t ready, signal;
    uint64_t address;
    alignas(128) uint64_t arrived;
};

static_assert(sizeof(Step) == EVO_STEP_BYTES && offsetof(Orders, steps) == EVO_STEPS_OFFSET, "shared layout");
static_assert(sizeof(Output) == EVO_OUTPUT_BYTES && offsetof(Orders, outputs) == EVO_OUTPUTS_OFFSET, "shared layout");
static_assert(offsetof(Orders, key) == 24 && offsetof(Orders, start) == 64, "shared layout");
static_assert(offsetof(Report, arrived) == EVO_ARRIVED_OFFSET, "shared layout");

static const Orders* orders;
static Report* report;
static uint32_t workers, threads_up, locked;
alignas(128) static uint64_t released;  // up to which arrival the workers may go on

static void clear(long first, long last, int, char* to, long block, long bytes) {
    long begin = first * block, end = last * block < bytes ? last * block : bytes;
    memset(to + begin, 0, end - begin);
}

static void copy(long first, long last, int, char* to, const char* from, long block, long bytes) {
    long begin = first * block, end = last * block < bytes ? last * block : bytes;
    memcpy(to + begin, from + begin, end - begin);
}

#define EVO_ADDRESS(name) (void*)name,
static void* const jumps[] = {(void*)clear, (void*)copy, EVO_SUPPLIED(EVO_ADDRESS)};

[[noreturn]] static void fail(const char* what) {
    perror(what);
    _exit(70);
}

static void* map(const char* what, int fd, uint64_t at, size_t bytes, int protection) {
    int flags = MAP_SHARED | (at ? MAP_FIXED_NOREPLACE : 0);
    void* got = mmap((void*)at, bytes, protection, flags, fd, 0);
    if (got == MAP_FAILED || (at && got != (void*)at)) fail(what);
    return got;
}

static void write_jumps() {
    unsigned char* page = (unsigned char*)mmap((void*)(EVO_CODE_BASE - 4096), 4096, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (page == MAP_FAILED) fail("jumps");
    for (size_t i = 0; i < sizeof jumps / sizeof *jumps; ++i) {
        unsigned char jump[16] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};  // mov rax, target; jmp rax
        memcpy(jump + 2, &jumps[i], 8);
        memcpy(page + 16 * i, jump, 16);
    }
    if (mprotect(page, 4096, PROT_READ | PROT_EXEC)) fail("jumps");
}

static void on_fault(int number, siginfo_t* info, void*) {
    report->address = info->si_code == SI_KERNEL ? ~0ul : (uint64_t)info->si_addr;  // ~0: the processor gave none
    __atomic_store_n(&report->signal, (uint32_t)number, __ATOMIC_RELEASE);
    syscall(SYS_exit_group, 128 + number);
}

static void catch_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (int number : numbers) sigaction(number, &action, nullptr);
}

static void limit(int resource, rlim_t most) {
    struct rlimit value = {most, most};
    if (setrlimit((__rlimit_resource)resource, &value)) fail("setrlimit");
}

static void lock_down() {
    const uint64_t word = (uint64_t)&orders->command;
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_HIGH(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field) + 4)
#define KILL_UNLESS(value) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 1, 0), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
    struct sock_filter rules[] = {
        LOAD(arch), KILL_UNLESS(AUDIT_ARCH_X86_64),
        LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        KILL_UNLESS(SYS_futex),
        LOAD(args[0]), KILL_UNLESS(word), LOAD_HIGH(args[0]), KILL_UNLESS(word >> 32),
        LOAD(args[1]), KILL_UNLESS(FUTEX_WAIT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, 0);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_MEMLOCK, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    // SPEC_ALLOW: candidates are timed, so the filter must not slow speculation down.
    unsigned flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program)) fail("seccomp");
}

// Floating-point control, x87 and flags as the ABI has them, whatever the call before left behind.
static inline void reset_state() {
    __builtin_ia32_ldmxcsr(0x1f80);
    asm volatile("fninit");
    __builtin_ia32_writeeflags_u64(0x202);
}

// Integers and floats are assigned to registers independently by the ABI, and surplus arguments do no harm, so one call
// with all of them serves every signature.
static void run_blocks(const Step& step, int worker) {
    typedef void Kernel(long, long, long, EVO_WORD_TYPES, EVO_FLOAT_TYPES);
    Kernel* kernel = (Kernel*)step.entry;
    const uint64_t* w = step.words;
    const double* f = step.floats;
    for (long first = worker * step.block; first < step.items; first += (long)workers * step.block) {
        long last = step.items - first < step.block ? step.items : first + step.block;
        kernel(first, last, worker, EVO_WORD_VALUES, EVO_FLOAT_VALUES);
        reset_state();
    }
}

static inline void relax() {
    __builtin_ia32_pause();
}

// A counter-based generator: the finaliser of SplitMix64 on key and counter.
static inline uint64_t draw(uint64_t key, uint64_t counter) {
    uint64_t x = key + counter * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Changes one element in each of EVO_SPOILS equal parts of every output of `call`, in its two lowest bits (which hold
// mantissa in every float type). Apart, so that no two changes undo each other.
static void spoil(uint32_t call, uint64_t key, uint64_t number) {
    const uint32_t begin = orders->output_start[call], end = orders->output_start[call + 1];
    for (uint32_t i = begin; i < end; ++i) {
        const Output output = orders->outputs[i];
        for (uint64_t part = 0; part < EVO_SPOILS; ++part) {
            const uint64_t low = output.elements * part / EVO_SPOILS, high = output.elements * (part + 1) / EVO_SPOILS;
            const uint64_t random = draw(key, (number << 16) + (i - begin) * EVO_SPOILS + part);
            const uint64_t place = low + (uint64_t)((unsigned __int128)random * (high - low) >> 64);
            if (low < high) output.data[place * output.itemsize] ^= (unsigned char)(1 + random % 3);
        }
    }
}

// Waits until all workers are here. The last one first does `before_release`, while the others stand still.
template <class Action>
static inline void meet(uint64_t met, Action before_release) {
    if (__atomic_add_fetch(&report->arrived, 1, __ATOMIC_ACQ_REL) == met) {
        before_release();
        __atomic_store_n(&released, met, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&released, __ATOMIC_ACQUIRE) < met) relax();
}

static void cpuid() {
    uint32_t a = 0, b, c = 0, d;
    asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d)::"memory");
}

// One command. What it says is copied: once all have arrived at the last step, the parent may write the next.
static void obey(int worker, uint64_t& met) {
    const uint32_t first = orders->first, count = orders->count, calls = orders->calls;
    const uint64_t key = orders->key;
    if (orders->only_spoil) {
        if (worker == 0)
            for (uint32_t k = 0; k < count; ++k) spoil((first + k) % calls, key, k);
        meet(met += workers, [] {});
        return;
    }
    for (uint32_t k = 0; k < count; ++k) {
        const uint32_t call = (first + k) % calls, end = orders->start[call + 1];
        for (uint32_t i = orders->start[call]; i < end; ++i) {
            run_blocks(orders->steps[i], worker);
            meet(met += workers, [=] {
                if (key && i + 1 == end && count - k > calls) spoil(call, key, k);
            });
        }
    }
}

static void* serve(void* which) {
    const int worker = (int)(intptr_t)which;
    __atomic_fetch_add(&threads_up, 1, __ATOMIC_ACQ_REL);
    while (!__atomic_load_n(&locked, __ATOMIC_ACQUIRE)) relax();
    uint32_t seen = 0;
    uint64_t met = 0;
    for (;;) {
        for (long spins = 0; __atomic_load_n(&orders->command, __ATOMIC_ACQUIRE) == seen; ++spins) {
            if (spins < EVO_SPINS) relax();
            else syscall(SYS_futex, &orders->command, FUTEX_WAIT, seen, nullptr, nullptr, 0);
        }
        seen = __atomic_load_n(&orders->command, __ATOMIC_ACQUIRE);
        if (orders->fresh) cpuid();  // no stale instruction may be executed
        obey(worker, met);
    }
    return nullptr;
}

int main(int count, char** text) {
    long n[11] = {};
    for (int i = 1; i < count && i < 11; ++i) n[i] = atol(text[i]);
    if (count != 11) return 64;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != n[10]) return 65;  // the parent died before it could be said
    orders = (const Orders*)map("orders", (int)n[1], 0, sizeof(Orders), PROT_READ);
    report = (Report*)map("report", (int)n[2], 0, 4096, PROT_READ | PROT_WRITE);
    map("inputs", (int)n[3], EVO_INPUTS_BASE, n[8], PROT_READ);
    map("outputs", (int)n[4], EVO_OUTPUTS_BASE, n[7], PROT_READ | PROT_WRITE);
    map("code", (int)n[5], EVO_CODE_BASE, n[9], PROT_READ | PROT_EXEC);
    write_jumps();
    workers = (uint32_t)n[6];
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) fail("rdtsc");  // inherited by the threads
    for (intptr_t worker = 1; worker < workers; ++worker) {
        pthread_t thread;
        if ((errno = pthread_create(&thread, nullptr, serve, (void*)worker))) fail("thread");
    }
    while (__atomic_load_n(&threads_up, __ATOMIC_ACQUIRE) + 1 < workers) relax();
    if (syscall(SYS_close_range, 0, ~0u, 0)) fail("close_range");
    catch_faults();
    lock_down();
    __atomic_store_n(&report->ready, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&locked, 1, __ATOMIC_RELEASE);
    serve(nullptr);
}
