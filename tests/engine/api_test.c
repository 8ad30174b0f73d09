/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public contract, call by call: what pagetide.h promises, and the reports
 * of users that concern it, each as a test named after its symptom.
 */
#include "fixture.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB TIDE__MIB
#define SECOND UINT64_C(1000000000)

/* ---- Open ---- */

static tide_status try_open(const tide_open_options *options) {
    tide_allocator *a = NULL;
    tide_status status = tide_open(options, &a);
    if (status == TIDE_OK) {
        assert_ok(tide_close(a));
    } else {
        assert_null(a);
        assert_true(strlen(tide_last_error()) > 0);
    }
    return status;
}

static void the_backend_is_never_chosen_silently(void **state) {
    (void)state;
    unsetenv("PAGETIDE_DEVICE");
    assert_fails(TIDE_NO_DEVICE, try_open(NULL));
    setenv("PAGETIDE_DEVICE", "", 1);
    assert_fails(TIDE_NO_DEVICE, try_open(NULL));
    setenv("PAGETIDE_DEVICE", "host", 1);
    assert_ok(try_open(NULL));
    setenv("PAGETIDE_DEVICE", "sim", 1);
    assert_ok(try_open(NULL));
    setenv("PAGETIDE_DEVICE", "gpu", 1);
    assert_fails(TIDE_NO_DEVICE, try_open(NULL));
    assert_non_null(strstr(tide_last_error(), "gpu"));
    tide_open_options options = {.struct_size = sizeof options, .backend = "sim"}; /* the option decides */
    assert_ok(try_open(&options));
    unsetenv("PAGETIDE_DEVICE");
    options.backend = "cuda";
    assert_fails(TIDE_NO_DEVICE, try_open(&options));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_open(&options, NULL));
}

static void options_are_checked(void **state) {
    (void)state;
    tide_open_options options = {.struct_size = sizeof options, .backend = "sim", .device_count = -1};
    assert_fails(TIDE_INVALID_ARGUMENT, try_open(&options));
    options.device_count = 65;
    assert_fails(TIDE_INVALID_ARGUMENT, try_open(&options));
    options.device_count = 64;
    assert_ok(try_open(&options));
    options.device_count = 0;
    options.cross_stream = (tide_cross_stream)9;
    assert_fails(TIDE_INVALID_ARGUMENT, try_open(&options));
    options.cross_stream = TIDE_CROSS_STREAM_DEFAULT;
    options.struct_size = 0;
    assert_fails(TIDE_INVALID_ARGUMENT, try_open(&options));
    options.struct_size = 1 << 20;
    assert_fails(TIDE_INVALID_ARGUMENT, try_open(&options));
}

static void callers_of_other_versions_are_understood(void **state) {
    (void)state;
    struct {
        tide_open_options options;
        unsigned char later[64];
    } newer;
    memset(&newer, 0xee, sizeof newer);
    newer.options = (tide_open_options){.struct_size = sizeof newer, .backend = "sim", .device_count = 2};
    assert_ok(try_open(&newer.options));
    tide_open_options older; /* what it lacks is garbage and must not be read */
    memset(&older, 0xee, sizeof older);
    older.struct_size = offsetof(tide_open_options, device_count);
    older.backend = "sim";
    assert_ok(try_open(&older));
}

static void cross_stream_comes_from_the_environment_unless_given(void **state) {
    (void)state;
    tide_open_options options = {.struct_size = sizeof options, .backend = "sim"};
    static const char *const fine[] = {"", "off", "idle", "wait"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        setenv("PAGETIDE_CROSS_STREAM", fine[i], 1);
        assert_ok(try_open(&options));
    }
    setenv("PAGETIDE_CROSS_STREAM", "sometimes", 1);
    assert_fails(TIDE_INVALID_ARGUMENT, try_open(&options));
    assert_non_null(strstr(tide_last_error(), "sometimes"));
    options.cross_stream = TIDE_CROSS_STREAM_OFF;
    assert_ok(try_open(&options));
    unsetenv("PAGETIDE_CROSS_STREAM");
}

/* ---- Errors ---- */

static void every_status_has_a_name(void **state) {
    (void)state;
    assert_string_equal(tide_status_name(TIDE_OK), "TIDE_OK");
    assert_string_equal(tide_status_name(TIDE_INTERNAL), "TIDE_INTERNAL");
    assert_non_null(tide_status_name((tide_status)-99));
    assert_non_null(tide_last_error());
}

static void calls_on_nothing_are_errors(void **state) {
    (void)state;
    void *ptr = NULL;
    tide_stream stream;
    tide_pool pool;
    tide_stats stats = {.struct_size = sizeof stats};
    int here = 0;
    assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc(NULL, 0, 1, 0, 0, &ptr));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc_at(NULL, 0, 1, 0, 0, &here));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_free(NULL, &here));
    assert_ok(tide_free(NULL, NULL));
    assert_int_not_equal(tide_record_stream(NULL, &here, 0), TIDE_OK);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_pool_create(NULL, 0, &pool));
    assert_int_not_equal(tide_pool_release(NULL, 1), TIDE_OK);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_trim(NULL, 0, NULL, NULL));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_stream_create(NULL, 0, &stream));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_stream_retire(NULL, 0, 0));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_stats_get(NULL, 0, &stats));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_stats_reset_peaks(NULL, 0));
    assert_int_equal(tide_reserved_bytes(NULL, 0), 0);
    assert_ok(tide_close(NULL));
}

static void devices_that_are_not_there_are_errors(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.devices = 2});
    void *ptr = f;
    for (int device = -1; device < 3; device += 3) {
        assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc(f->a, device, 512, 0, 0, &ptr));
        assert_fails(TIDE_INVALID_ARGUMENT, tide_trim(f->a, device, NULL, NULL));
        assert_int_equal(tide_reserved_bytes(f->a, device), 0);
    }
    assert_ptr_equal(ptr, f); /* outputs are written only on success */
    close_fixture(f);
}

/* ---- Blocks ---- */

static void nothing_costs_nothing(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = f;
    assert_ok(tide_alloc(f->a, 0, 0, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_null(ptr);
    assert_ok(tide_free(f->a, NULL));
    assert_ok(tide_alloc_at(f->a, 0, 0, 0, TIDE_POOL_DEFAULT, NULL));
    tide_stats s = stats_of(f, 0);
    assert_int_equal(s.reserved_bytes + s.allocated_bytes + s.address_bytes, 0);
    close_fixture(f);
}

static void blocks_are_aligned_and_know_their_sizes(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    static const uint64_t sizes[] = {1,   511,     512,     513,          MIB - 1,
                                     MIB, MIB + 1, 2 * MIB, 16 * MIB + 1, 200 * MIB + 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t requested = 0, size = 0;
        void *ptr = alloc_on(f, sizes[i], 0);
        assert_int_equal((uintptr_t)ptr % 512, 0);
        assert_ok(tide_block_size(f->a, ptr, &requested, &size));
        assert_int_equal(requested, sizes[i]);
        assert_int_equal(size, tide__align_up(sizes[i], 512));
        assert_fails(TIDE_NOT_ALLOCATED, tide_block_size(f->a, (char *)ptr + 1, &requested, &size));
    }
    close_fixture(f);
}

static void only_a_live_block_can_be_freed(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    static const uint64_t sizes[] = {512, 4096, MIB, 5 * MIB, 40 * MIB};
    int here = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *ptr = alloc_on(f, sizes[i], 0);
        tide_stats before = stats_of(f, 0);
        assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, ptr + 1));
        assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, ptr + 512)); /* inside, or just behind */
        assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, ptr - 512));
        assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, &here));
        assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, (void *)(UINTPTR_MAX - 511)));
        tide_stats after = stats_of(f, 0);
        assert_memory_equal(&before, &after, sizeof before);
        free_block(f, ptr);
        assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, ptr));
        assert_fails(TIDE_NOT_ALLOCATED, tide_record_stream(f->a, ptr, 0));
        trim(f, UINT64_MAX, 0);
        assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, ptr)); /* nothing is mapped there any more */
    }
    close_fixture(f);
}

typedef struct freeing {
    tide_allocator *a;
    void *ptr;
    tide_status status;
} freeing;

static void *free_on_a_thread(void *user) {
    freeing *job = user;
    job->status = tide_free(job->a, job->ptr);
    return NULL;
}

static void another_thread_may_free(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = alloc_on(f, 3 * MIB, 0);
    freeing job = {f->a, ptr, TIDE_INTERNAL};
    pthread_t thread;
    watch_freed(f->w, 0, (uintptr_t)ptr);
    assert_int_equal(pthread_create(&thread, NULL, free_on_a_thread, &job), 0);
    pthread_join(thread, NULL);
    assert_int_equal(job.status, TIDE_OK);
    assert_ptr_equal(alloc_on(f, 3 * MIB, 0), ptr); /* back with its own stream */
    close_fixture(f);
}

static void a_stream_reuses_its_memory_at_once(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    static const uint64_t sizes[] = {512, 100000, 3 * MIB, 70 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *first = alloc_on(f, sizes[i], 0);
        free_block(f, first);
        uint64_t created = stats_of(f, 0).chunks_created;
        assert_ptr_equal(alloc_on(f, sizes[i], 0), first);
        assert_int_equal(stats_of(f, 0).chunks_created, created);
    }
    close_fixture(f);
}

static void another_stream_waits_until_the_work_is_done(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND, .mode = TIDE_CROSS_STREAM_IDLE});
    tide_stream other = new_stream(f);
    void *first = alloc_on(f, 40 * MIB, 0);
    free_block(f, alloc_on(f, 40 * MIB, other)); /* both streams are seen */
    free_block(f, first);
    assert_ptr_not_equal(alloc_on(f, 40 * MIB, other), first);
    uint64_t reserved = stats_of(f, 0).reserved_bytes;
    trim(f, 0, 0); /* closes the epoch */
    tide__sim_set_trace_time(f->inner, 2 * SECOND);
    void *again = alloc_on(f, 40 * MIB, other);
    assert_int_equal(stats_of(f, 0).reserved_bytes, reserved); /* idle by now: nothing new was needed */
    free_block(f, again);
    close_fixture(f);
}

static void off_means_that_nobody_else_gets_a_block(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.mode = TIDE_CROSS_STREAM_OFF});
    tide_stream other = new_stream(f);
    void *first = alloc_on(f, 40 * MIB, 0);
    free_block(f, first);
    trim(f, 0, UINT64_MAX);
    assert_ptr_not_equal(alloc_on(f, 40 * MIB, other), first);
    assert_ptr_equal(alloc_on(f, 40 * MIB, 0), first);
    close_fixture(f);
}

static void a_recorded_block_is_nobodys_until_that_stream_has_passed(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    tide_stream other = new_stream(f);
    void *ptr = alloc_on(f, 8 * MIB, 0);
    assert_ok(tide_record_stream(f->a, ptr, other));
    watch_recorded(f->w, 0, (uintptr_t)ptr, watch_slot(f->w, 0, other));
    free_block(f, ptr);
    assert_int_equal(stats_of(f, 0).allocated_bytes, 0);
    assert_int_equal(stats_of(f, 0).active_bytes, 8 * MIB);
    assert_ptr_not_equal(alloc_on(f, 8 * MIB, 0), ptr);
    assert_fails(TIDE_NOT_ALLOCATED, tide_free(f->a, ptr));
    tide_trim_result r = trim(f, UINT64_MAX, UINT64_MAX);
    assert_int_equal(r.released_bytes, 8 * MIB);
    assert_int_equal(stats_of(f, 0).active_bytes, 8 * MIB); /* the second one */
    close_fixture(f);
}

static void recording_the_own_stream_changes_nothing(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    void *ptr = alloc_on(f, 8 * MIB, 0);
    assert_ok(tide_record_stream(f->a, ptr, 0));
    free_block(f, ptr);
    assert_ptr_equal(alloc_on(f, 8 * MIB, 0), ptr);
    close_fixture(f);
}

/* ---- A given address ---- */

static void an_address_can_be_taken_again(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = alloc_on(f, 5 * MIB, 0);
    int here = 0;
    assert_fails(TIDE_IN_USE, try_alloc_at(f, 5 * MIB, 0, ptr));
    assert_fails(TIDE_IN_USE, try_alloc_at(f, 4 * MIB, 0, (char *)ptr + MIB));
    free_block(f, ptr);
    assert_ok(try_alloc_at(f, 5 * MIB, 0, ptr));
    free_block(f, ptr);
    trim(f, UINT64_MAX, 0); /* no chunk is behind it now */
    assert_ok(try_alloc_at(f, 5 * MIB, 0, ptr));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc_at(f->a, 0, 512, 0, 0, &here));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc_at(f->a, 0, 512, 0, 0, NULL));
    assert_int_not_equal(tide_alloc_at(f->a, 0, 512, 0, 0, (char *)ptr + 1), TIDE_OK);
    assert_int_equal(stats_of(f, 0).allocated_bytes, 5 * MIB);
    close_fixture(f);
}

#define RESTORED 200

static void a_checkpoint_of_addresses_is_restored_in_any_order(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *at[RESTORED];
    uint64_t sizes[RESTORED], random = 7;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < RESTORED; i++) {
            sizes[i] = round == 0 ? 1 + next_random(&random) % (i % 8 == 0 ? 20 * MIB : 300000) : sizes[i];
            at[i] = round == 0 ? alloc_on(f, sizes[i], 0) : at[i];
        }
        for (size_t i = 0; i < RESTORED; i++) {
            free_block(f, at[i]);
        }
        if (round == 1) {
            trim(f, UINT64_MAX, 0);
            free_block(f, alloc_on(f, 64 * MIB, 0)); /* the chunks are elsewhere by now */
        }
        for (size_t i = RESTORED; i > 1; i--) {
            size_t k = next_random(&random) % i;
            void *ptr = at[k];
            uint64_t size = sizes[k];
            at[k] = at[i - 1], sizes[k] = sizes[i - 1];
            at[i - 1] = ptr, sizes[i - 1] = size;
        }
        for (size_t i = 0; i < RESTORED; i++) {
            assert_ok(try_alloc_at(f, sizes[i], 0, at[i]));
        }
        tide__allocator_validate(f->a);
    }
    close_fixture(f);
}

/* ---- Pools ---- */

static void memory_of_one_pool_never_serves_another(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_pool kv, weights;
    assert_ok(tide_pool_create(f->a, 0, &kv));
    assert_ok(tide_pool_create(f->a, 0, &weights));
    void *keep = alloc_in(f, 512, kv);
    void *first = alloc_in(f, 3 * MIB, kv);
    free_block(f, first);
    void *second = alloc_in(f, 3 * MIB, weights); /* watch: no chunk is under both */
    assert_ptr_not_equal(first, second);
    void *small = alloc_in(f, 512, weights);
    assert_int_not_equal((uintptr_t)small / GRANULE, (uintptr_t)keep / GRANULE);
    close_fixture(f);
}

static void a_released_pool_is_known_no_more(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.devices = 2});
    tide_pool pool, next;
    void *ptr = f;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc(f->a, 1, 512, 0, pool, &ptr)); /* of another device */
    void *block = alloc_in(f, 4 * MIB, pool);
    assert_fails(TIDE_IN_USE, tide_pool_release(f->a, pool));
    free_block(f, block);
    assert_ok(tide_pool_release(f->a, pool));
    assert_fails(TIDE_BAD_HANDLE, tide_pool_release(f->a, pool));
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(f->a, 0, 512, 0, pool, &ptr));
    assert_ptr_equal(ptr, f);
    assert_ok(tide_pool_create(f->a, 0, &next));
    assert_true(next != pool);
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(f->a, 0, 512, 0, pool, &ptr));
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(f->a, 0, 512, 0, 12345, &ptr));
    assert_fails(TIDE_BAD_HANDLE, tide_pool_release(f->a, TIDE_POOL_DEFAULT));
    assert_fails(TIDE_BAD_HANDLE, tide_pool_release(f->a, TIDE_POOL_CURRENT));
    /* Its chunks serve others: nothing new is needed. */
    uint64_t created = stats_of(f, 0).chunks_created;
    alloc_in(f, 4 * MIB, next);
    assert_true(stats_of(f, 0).chunks_created <= created + 2);
    close_fixture(f);
}

static void trimming_a_custom_pool_gives_its_memory_back(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_pool pool;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    void *ptr = alloc_in(f, 100 * MIB, pool);
    free_block(f, ptr);
    assert_int_equal(trim(f, UINT64_MAX, 0).released_bytes, 100 * MIB);
    assert_int_equal(used_bytes(f, 0), 0);
    close_fixture(f);
}

/* ---- Out of memory ---- */

static void fill_up(fixture *f, tide_status want, uint64_t most) {
    void *ptr[64];
    size_t count = 0;
    tide_status status = TIDE_OK;
    while (status == TIDE_OK && count < 64) {
        status = try_alloc(f, 0, 16 * MIB, 0, TIDE_POOL_DEFAULT, &ptr[count]);
        count += status == TIDE_OK;
    }
    assert_int_equal(status, want);
    assert_int_equal(count, most / (16 * MIB));
    assert_true(strlen(tide_last_error()) > 0);
    tide_stats s = stats_of(f, 0);
    assert_int_equal(s.ooms, 1);
    assert_int_equal(s.allocated_bytes, count * 16 * MIB);
    assert_true(s.reserved_bytes <= most);
    tide__allocator_validate(f->a);
    free_block(f, ptr[0]); /* the next call works */
    ptr[0] = alloc_on(f, 16 * MIB, 0);
    for (size_t i = 0; i < count; i++) {
        free_block(f, ptr[i]);
    }
    trim(f, UINT64_MAX, UINT64_MAX);
    assert_int_equal(used_bytes(f, 0), 0);
}

static void a_full_device_is_an_error_and_nothing_is_lost(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 256 * MIB});
    fill_up(f, TIDE_NO_DEVICE_MEMORY, 256 * MIB);
    close_fixture(f);
}

static void a_limit_is_an_error_of_its_own(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.limit = 128 * MIB});
    fill_up(f, TIDE_LIMIT, 128 * MIB);
    close_fixture(f);
}

static void requests_beyond_everything_are_refused(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    static const size_t sizes[] = {(size_t)1 << 31, (size_t)1 << 50, SIZE_MAX / 2, SIZE_MAX - 511, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *ptr = f;
        assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, sizes[i], 0, TIDE_POOL_DEFAULT, &ptr));
        assert_ptr_equal(ptr, f);
    }
    alloc_on(f, MIB, 0);
    close_fixture(f);
}

static void one_driver_error_does_not_fail_the_next_call(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    static const int calls[] = {TIDE__CALL_CHUNK_CREATE, TIDE__CALL_MAP, TIDE__CALL_SET_ACCESS,
                                TIDE__CALL_RESERVE};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *ptr = f;
        uint64_t size =
            (20 + 200 * (i / 3)) * MIB; /* the last in a class of its own: addresses must be reserved */
        assert_ok(tide__fault_arm(f->fault, calls[i], 1, TIDE_INVALID_ARGUMENT, false));
        assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc(f->a, 0, size, 0, TIDE_POOL_DEFAULT, &ptr));
        assert_non_null(strstr(tide_last_error(), tide__call_name((tide__call)calls[i])));
        tide__allocator_validate(f->a);
        alloc_on(f, size, 0);
    }
    assert_int_equal(stats_of(f, 0).ooms, 0);
    close_fixture(f);
}

static void a_partly_failed_map_is_rolled_back(void **state) {
    (void)state;
    static const int calls[] = {TIDE__CALL_MAP, TIDE__CALL_SET_ACCESS, TIDE__CALL_CHUNK_CREATE};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (uint64_t k = 1; k <= 5; k++) {
            fixture *f = open_fixture(&(fixture_options){0});
            void *ptr = NULL;
            assert_ok(tide__fault_arm(f->fault, calls[i], k, TIDE_DRIVER, false));
            tide_status status = try_alloc(f, 0, 90 * MIB, 0, TIDE_POOL_DEFAULT, &ptr);
            assert_true(status == TIDE_OK || status == TIDE_DRIVER);
            tide__allocator_validate(f->a);
            tide__fault_disarm(f->fault);
            if (status == TIDE_OK) {
                free_block(f, ptr);
            }
            free_block(f, alloc_on(f, 90 * MIB, 0));
            assert_true(stats_of(f, 0).reserved_bytes <= 96 * MIB); /* what was made the first time served */
            trim(f, UINT64_MAX, UINT64_MAX);
            assert_int_equal(used_bytes(f, 0), 0);
            close_fixture(f);
        }
    }
}

static void a_block_that_becomes_free_in_the_wait_is_found(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 64 * MIB, .delay = SECOND});
    tide_stream other = new_stream(f);
    free_block(f, alloc_on(f, 512, other));
    void *ptr = alloc_on(f, 60 * MIB, 0);
    free_block(f, ptr);
    alloc_on(f, 60 * MIB, other); /* the device has no more: it waits, and then the block fits */
    tide_stats s = stats_of(f, 0);
    assert_int_equal(s.ooms, 0);
    assert_true(s.host_waits >= 1);
    close_fixture(f);
}

typedef struct late_gate {
    tide__device *host;
    tide__host_gate gate;
} late_gate;

static void *open_gate_later(void *user) {
    const late_gate *g = user;
    usleep(1500000);
    tide__host_gate_open(g->host, 0, g->gate);
    return NULL;
}

static void own_memory_is_had_without_waiting_for_others(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.host = true, .capacity = 64 * MIB});
    tide_stream busy = new_stream(f);
    late_gate g = {.host = f->inner};
    pthread_t thread;
    void *elsewhere = alloc_on(f, 4 * MIB, busy);
    void *ptr[6];
    for (size_t i = 0; i < 6; i++) {
        ptr[i] = alloc_on(f, 8 * MIB, 0);
    }
    assert_ok(tide__host_gate_create(f->inner, 0, &g.gate));
    assert_ok(tide__host_hold(f->inner, 0, busy, g.gate)); /* a long kernel elsewhere */
    assert_int_equal(pthread_create(&thread, NULL, open_gate_later, &g), 0);
    for (size_t i = 0; i < 6; i++) {
        free_block(f, ptr[i]);
    }
    uint64_t before = tide__monotonic_ns();
    void *big = alloc_on(f, 48 * MIB, 0);
    assert_true(tide__monotonic_ns() - before < SECOND);
    assert_int_equal(stats_of(f, 0).host_waits, 0);
    pthread_join(thread, NULL);
    free_block(f, big);
    free_block(f, elsewhere);
    close_fixture(f);
}

static void what_is_live_and_the_request_fit_whatever_the_holes(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 512 * MIB});
    void *ptr[40], *keep[40];
    uint64_t random = 3;
    for (int step = 0; step < 12; step++) { /* changing lengths */
        size_t count = 0;
        for (uint64_t sum = 0; sum < 300 * MIB && count < 40; count++) {
            uint64_t size = 4 * MIB + next_random(&random) % (40 * MIB);
            ptr[count] = alloc_on(f, size, 0);
            sum += size;
        }
        for (size_t i = 0; i < count; i++) {
            keep[i] =
                i % 8 == (size_t)step % 8 ? alloc_on(f, 512, 0) : NULL; /* small ones stay for a while */
            free_block(f, ptr[i]);
        }
        void *big = alloc_on(f, 440 * MIB, 0);
        free_block(f, big);
        for (size_t i = 0; i < count; i++) {
            if (keep[i] != NULL) {
                free_block(f, keep[i]);
            }
        }
    }
    assert_int_equal(stats_of(f, 0).ooms, 0);
    close_fixture(f);
}

/* ---- Trim ---- */

static void trim_says_what_it_did(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *a = alloc_on(f, 64 * MIB, 0), *b = alloc_on(f, 64 * MIB, 0), *c = alloc_on(f, 3 * MIB, 0);
    uint64_t reserved = stats_of(f, 0).reserved_bytes;
    tide_trim_result r = trim(f, UINT64_MAX, 0);
    assert_int_equal(r.released_bytes, 0);
    assert_int_equal(r.pinned_bytes, reserved - 131 * MIB);
    free_block(f, a);
    r = trim(f, 10 * MIB, 0);
    assert_true(r.released_bytes >= 10 * MIB && r.released_bytes <= 64 * MIB);
    free_block(f, b);
    trim(f, UINT64_MAX, 0);
    tide_stats s = stats_of(f, 0);
    assert_int_equal(s.reserved_bytes, used_bytes(f, 0));
    assert_int_equal(s.reserved_bytes, tide_reserved_bytes(f->a, 0));
    assert_true(s.reserved_bytes <= 4 * MIB);
    free_block(f, c);
    r = trim(f, UINT64_MAX, 0);
    assert_int_equal(r.pinned_bytes + r.pending_bytes, 0);
    assert_int_equal(used_bytes(f, 0), 0);
    assert_ok(tide_trim(f->a, 0, NULL, NULL)); /* all, at once, and nobody asks */
    close_fixture(f);
}

static void trim_takes_what_is_idle_and_waits_no_longer_than_told(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    free_block(f, alloc_on(f, 64 * MIB, 0));
    tide_trim_result r = trim(f, UINT64_MAX, 0);
    assert_int_equal(r.released_bytes, 0);
    assert_int_equal(r.pending_bytes, 64 * MIB);
    uint64_t before = f->inner->ops->now_ns(f->inner);
    r = trim(f, UINT64_MAX, SECOND / 2);
    assert_int_equal(r.released_bytes, 0);
    assert_true(f->inner->ops->now_ns(f->inner) - before <= SECOND / 2);
    r = trim(f, UINT64_MAX, UINT64_MAX);
    assert_int_equal(r.released_bytes, 64 * MIB);
    assert_int_equal(r.pending_bytes, 0);
    close_fixture(f);
}

/* ---- Streams ---- */

static void a_stream_handle_can_come_again(void **state) {
    (void)state;
    for (int host = 0; host < 2; host++) {
        fixture *f = open_fixture(&(fixture_options){.host = host != 0, .capacity = 128 * MIB});
        if (host) {
            tide__host_reuse_stream_handles(f->inner, true);
        }
        void *left = NULL;
        for (int i = 0; i < 20; i++) {
            tide_stream stream = new_stream(f);
            void *ptr = alloc_on(f, 4 * MIB, stream);
            free_block(f, alloc_on(f, 10000, stream));
            if (left != NULL) {
                free_block(f, left); /* a block that outlived its stream */
            }
            left = ptr;
            assert_ok(tide_stream_destroy(f->a, 0, stream));
        }
        free_block(f, left);
        trim(f, UINT64_MAX, UINT64_MAX);
        assert_int_equal(used_bytes(f, 0), 0);
        close_fixture(f);
    }
}

static void streams_that_are_not_there_are_errors(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.host = true, .capacity = 64 * MIB});
    void *ptr = f;
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(f->a, 0, 512, 987654321, TIDE_POOL_DEFAULT, &ptr));
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(f->a, 0, 512, UINT64_MAX, TIDE_POOL_DEFAULT, &ptr));
    assert_ok(tide_stream_retire(f->a, 0, 987654321)); /* never seen: nothing to retire */
    assert_fails(TIDE_BAD_HANDLE, tide_stream_destroy(f->a, 0, 987654321));
    close_fixture(f);
}

/* ---- Statistics ---- */

static void statistics_are_exact(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *a = alloc_on(f, 1000, 0), *b = alloc_on(f, 5 * MIB + 1, 0);
    tide_stats s = stats_of(f, 0);
    assert_int_equal(s.requested_bytes, 1000 + 5 * MIB + 1);
    assert_int_equal(s.allocated_bytes, 1024 + 5 * MIB + 512);
    assert_int_equal(s.active_bytes, s.allocated_bytes);
    assert_int_equal(s.peak_requested_bytes, s.requested_bytes);
    assert_int_equal(s.allocs, 2);
    assert_int_equal(s.frees, 0);
    assert_int_equal(s.reserved_bytes, used_bytes(f, 0));
    assert_int_equal(s.chunks, s.chunks_created);
    free_block(f, b);
    s = stats_of(f, 0);
    assert_int_equal(s.requested_bytes, 1000);
    assert_int_equal(s.peak_requested_bytes, 1000 + 5 * MIB + 1);
    assert_int_equal(s.peak_allocated_bytes, 1024 + 5 * MIB + 512);
    assert_ok(tide_stats_reset_peaks(f->a, 0));
    s = stats_of(f, 0);
    assert_int_equal(s.peak_requested_bytes, 1000);
    assert_int_equal(s.peak_allocated_bytes, 1024);
    assert_int_equal(s.peak_reserved_bytes, s.reserved_bytes);
    b = alloc_on(f, 300, 0);
    free_block(f, b);
    assert_int_equal(stats_of(f, 0).peak_requested_bytes, 1300); /* to the byte, however small */
    free_block(f, a);
    s = stats_of(f, 0);
    assert_int_equal(s.frees, 3);
    assert_int_equal(s.requested_bytes + s.allocated_bytes + s.active_bytes, 0);
    close_fixture(f);
}

static void statistics_fit_the_callers_structure(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    alloc_on(f, 1000, 0);
    struct {
        tide_stats stats;
        uint64_t later[4];
    } s;
    memset(&s, 0xee, sizeof s);
    s.stats.struct_size = offsetof(tide_stats, active_bytes); /* an older caller's ends here */
    assert_ok(tide_stats_get(f->a, 0, &s.stats));
    assert_int_equal(s.stats.requested_bytes, 1000);
    assert_int_equal(s.stats.active_bytes, UINT64_C(0xeeeeeeeeeeeeeeee));
    s.stats.struct_size = sizeof s; /* a newer one's goes on */
    assert_ok(tide_stats_get(f->a, 0, &s.stats));
    assert_int_equal(s.stats.active_bytes, 1024);
    assert_int_equal(s.stats.struct_size, sizeof s);
    s.stats.struct_size = 0;
    assert_fails(TIDE_INVALID_ARGUMENT, tide_stats_get(f->a, 0, &s.stats));
    close_fixture(f);
}

static tide_phase_stats phase_at(fixture *f, int index) {
    tide_phase_stats p = {.struct_size = sizeof p};
    assert_ok(tide_phase_stats_get(f->a, 0, index, &p));
    return p;
}

static void each_phase_has_its_own_peaks(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_phase_stats p = {.struct_size = sizeof p};
    void *before = alloc_on(f, 1000, 0);
    assert_ok(tide_phase(f->a, "rollout"));
    free_block(f, alloc_on(f, 70 * MIB, 0));
    assert_ok(tide_phase(f->a, "update"));
    void *kept = alloc_on(f, 5 * MIB, 0);
    assert_ok(tide_phase(f->a, "rollout"));
    free_block(f, alloc_on(f, 20 * MIB, 0));
    assert_string_equal(phase_at(f, 0).name, "");
    assert_int_equal(phase_at(f, 0).peak_requested_bytes, 1000);
    assert_string_equal(phase_at(f, 1).name, "rollout");
    assert_int_equal(phase_at(f, 1).entered, 2);
    assert_int_equal(phase_at(f, 1).peak_requested_bytes, 70 * MIB + 1000);
    assert_int_equal(phase_at(f, 1).requested_bytes, 5 * MIB + 1000);
    assert_string_equal(phase_at(f, 2).name, "update");
    assert_int_equal(phase_at(f, 2).peak_requested_bytes, 5 * MIB + 1000);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_phase_stats_get(f->a, 0, 3, &p));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_phase_stats_get(f->a, 0, -1, &p));
    assert_int_equal(stats_of(f, 0).peak_requested_bytes,
                     70 * MIB + 1000); /* phases take nothing from the whole */
    assert_ok(tide_phase(f->a, NULL)); /* no phase */
    assert_int_equal(phase_at(f, 0).entered, 2);
    char name[200];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_ok(tide_phase(f->a, name));
    assert_int_equal(strlen(phase_at(f, 3).name), 63);
    assert_ok(tide_phase(f->a, name));
    assert_int_equal(phase_at(f, 3).entered, 2);
    free_block(f, kept);
    free_block(f, before);
    close_fixture(f);
}

/* ---- Devices, processes, the end ---- */

static void devices_are_apart(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.devices = 3, .capacity = 128 * MIB});
    void *ptr[3];
    for (int i = 0; i < 3; i++) {
        assert_ok(try_alloc(f, i, (uint64_t)(i + 1) * 20 * MIB, 0, TIDE_POOL_DEFAULT, &ptr[i]));
    }
    void *more = f;
    assert_fails(TIDE_NO_DEVICE_MEMORY, try_alloc(f, 2, 100 * MIB, 0, TIDE_POOL_DEFAULT, &more));
    assert_ok(try_alloc(f, 0, 100 * MIB, 0, TIDE_POOL_DEFAULT, &more));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stats_of(f, i).allocated_bytes,
                         (uint64_t)(i + 1) * 20 * MIB + (i == 0 ? 100 * MIB : 0));
        assert_int_equal(stats_of(f, i).reserved_bytes, used_bytes(f, i));
    }
    give(f, 1, ptr[1]);
    assert_ok(tide_trim(f->a, 1, NULL, NULL));
    assert_int_equal(used_bytes(f, 1), 0);
    assert_true(used_bytes(f, 2) >= 60 * MIB);
    close_fixture(f);
}

static void close_takes_back_what_is_live(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 4 * TIDE__GIB, .delay = SECOND});
    tide_stream other = new_stream(f);
    tide_pool pool;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    free_block(f, alloc_on(f, 500 * MIB, 0));
    alloc_on(f, 700 * MIB, 0);
    for (uint64_t size = 512; size < 200 * MIB; size *= 7) {
        alloc_on(f, size, 0);
        alloc_in(f, size, pool);
        free_block(f, alloc_on(f, size * 2, other));
    }
    assert_true(stats_of(f, 0).moves > 0); /* old mappings stand */
    close_fixture(f);
}

static void a_child_process_cannot_close_its_parents_allocator(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    alloc_on(f, MIB, 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(tide_close(f->a) == TIDE_FORKED ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    close_fixture(f);
}

/* ---- Peers ---- */

static void peers_reach_what_was_allocated_before_and_after(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.host = true, .devices = 2});
    void *before = alloc_on(f, 50 * MIB, 0), *small = alloc_on(f, 512, 0);
    assert_false(tide__host_peer_reaches(f->inner, 0, 1, (uintptr_t)before, 50 * MIB));
    assert_ok(tide__fault_arm(f->fault, TIDE__CALL_SET_ACCESS, 2, TIDE_DRIVER, false));
    assert_fails(TIDE_DRIVER, tide_peer_enable(f->a, 0, 1));
    assert_ok(tide_peer_enable(f->a, 0, 1)); /* goes on where the other stopped */
    assert_ok(tide_peer_enable(f->a, 0, 1));
    assert_ok(tide_peer_enable(f->a, 0, 0));
    void *after = alloc_on(f, 50 * MIB, 0);
    assert_true(tide__host_peer_reaches(f->inner, 0, 1, (uintptr_t)before, 50 * MIB));
    assert_true(tide__host_peer_reaches(f->inner, 0, 1, (uintptr_t)small, 512));
    assert_true(tide__host_peer_reaches(f->inner, 0, 1, (uintptr_t)after, 50 * MIB));
    free_block(f, before);
    void *moved = alloc_on(f, 20 * MIB, 0);
    assert_true(tide__host_peer_reaches(f->inner, 0, 1, (uintptr_t)moved, 20 * MIB));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_peer_enable(f->a, 0, 2));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_peer_enable(f->a, 2, 0));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_peer_enable(NULL, 0, 1));
    free_block(f, moved);
    free_block(f, after);
    free_block(f, small);
    close_fixture(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_backend_is_never_chosen_silently),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(callers_of_other_versions_are_understood),
        cmocka_unit_test(cross_stream_comes_from_the_environment_unless_given),
        cmocka_unit_test(every_status_has_a_name),
        cmocka_unit_test(calls_on_nothing_are_errors),
        cmocka_unit_test(devices_that_are_not_there_are_errors),
        cmocka_unit_test(nothing_costs_nothing),
        cmocka_unit_test(blocks_are_aligned_and_know_their_sizes),
        cmocka_unit_test(only_a_live_block_can_be_freed),
        cmocka_unit_test(another_thread_may_free),
        cmocka_unit_test(a_stream_reuses_its_memory_at_once),
        cmocka_unit_test(another_stream_waits_until_the_work_is_done),
        cmocka_unit_test(off_means_that_nobody_else_gets_a_block),
        cmocka_unit_test(a_recorded_block_is_nobodys_until_that_stream_has_passed),
        cmocka_unit_test(recording_the_own_stream_changes_nothing),
        cmocka_unit_test(an_address_can_be_taken_again),
        cmocka_unit_test(a_checkpoint_of_addresses_is_restored_in_any_order),
        cmocka_unit_test(memory_of_one_pool_never_serves_another),
        cmocka_unit_test(a_released_pool_is_known_no_more),
        cmocka_unit_test(trimming_a_custom_pool_gives_its_memory_back),
        cmocka_unit_test(a_full_device_is_an_error_and_nothing_is_lost),
        cmocka_unit_test(a_limit_is_an_error_of_its_own),
        cmocka_unit_test(requests_beyond_everything_are_refused),
        cmocka_unit_test(one_driver_error_does_not_fail_the_next_call),
        cmocka_unit_test(a_partly_failed_map_is_rolled_back),
        cmocka_unit_test(a_block_that_becomes_free_in_the_wait_is_found),
        cmocka_unit_test(own_memory_is_had_without_waiting_for_others),
        cmocka_unit_test(what_is_live_and_the_request_fit_whatever_the_holes),
        cmocka_unit_test(trim_says_what_it_did),
        cmocka_unit_test(trim_takes_what_is_idle_and_waits_no_longer_than_told),
        cmocka_unit_test(a_stream_handle_can_come_again),
        cmocka_unit_test(streams_that_are_not_there_are_errors),
        cmocka_unit_test(statistics_are_exact),
        cmocka_unit_test(statistics_fit_the_callers_structure),
        cmocka_unit_test(each_phase_has_its_own_peaks),
        cmocka_unit_test(devices_are_apart),
        cmocka_unit_test(close_takes_back_what_is_live),
        cmocka_unit_test(peers_reach_what_was_allocated_before_and_after),
        cmocka_unit_test(a_child_process_cannot_close_its_parents_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
