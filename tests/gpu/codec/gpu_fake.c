/* See gpu_fake.h. */
#include "gpu_fake.h"

#include "support/test.h"

#include <sim.h>

#include <string.h>

gpu_fake gpu_fake_device;
#define fake gpu_fake_device

static bool before(const char *call, gpu_result *result) {
    sim_config *settings = sim_settings();
    settings->checks = fake.checks;
    settings->seed = fake.seed;
    settings->resident = fake.resident != 0 ? fake.resident : 2;
    if (fake.fail == NULL || strcmp(fake.fail, call) != 0) return false;
    fake.fail = NULL;
    *result = fake.fail_with;
    return true;
}

static void after(const char *call) {
    const sim_totals *totals = sim_state();
    (void)call;
    fake.launches = totals->launches;
    fake.allocations = totals->allocations;
    fake.host_allocations = totals->host_allocations;
    fake.streams = totals->streams;
    fake.events = totals->events;
    fake.retained = totals->retained;
    fake.contexts = totals->contexts;
    fake.was_ptx = totals->was_ptx;
    fake.last = totals->last;
    fake.counters = totals->counters;
}

static void complain(const char *text) {
    fail_msg("%s", text);
}

const gpu_driver *gpu_fake_begin(const gpu_fake *device) {
    sim_end(); /* what a test that failed left */
    fake = *device;
    assert_true(sim_begin(&(sim_config){.major = fake.major,
                                        .minor = fake.minor,
                                        .driver_version = fake.driver_version,
                                        .no_device = fake.devices < 0,
                                        .memory_most = fake.memory_most,
                                        .shared_most = fake.shared_most,
                                        .resident = fake.resident,
                                        .checks = fake.checks,
                                        .seed = fake.seed,
                                        .deferred = fake.deferred,
                                        .folders = KVANT_TEST_BUILD_DIR,
                                        .before = before,
                                        .after = after,
                                        .complain = complain}));
    fake.machine = sim_state()->machine;
    return &sim_driver;
}

void gpu_fake_end(void) {
    after("");
    const gpu_fake left = fake;
    sim_end();
    fake = (gpu_fake){0};
    assert_int_equal(left.contexts, 0);
    assert_int_equal(left.retained, 0);
    assert_int_equal(left.allocations, 0);
    assert_int_equal(left.host_allocations, 0);
    assert_int_equal(left.streams, 0);
    assert_int_equal(left.events, 0);
}
