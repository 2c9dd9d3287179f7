// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts disk use: the requests that are submitted to each disk, with their
 * owner and the time of the last request.
 *
 * The trace point block_bio_queue fires in the context of the submitting task,
 * once per bio, before requests are merged or split. Requests to a partition
 * are counted for its disk. Reads and synchronous writes are charged to the
 * submitting task. Writeback is charged to the kernel thread that submits it.
 * Each request costs a few map operations. At most 1024 pairs of an owner and a
 * disk are counted; requests of further pairs are only counted as LOST_DEVICE.
 */
#include "notify.h"
#include "process_use.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct disk_key);
	__type(value, struct disk_use);
} disk_uses SEC(".maps");

static struct disk_use *disk_use_of(struct disk_key *key)
{
	struct disk_use *use = bpf_map_lookup_elem(&disk_uses, key);

	if (!use) {
		struct disk_use none = {};

		bpf_map_update_elem(&disk_uses, key, &none, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&disk_uses, key);
		if (!use)
			count_loss(LOST_DEVICE);
	}
	return use;
}

static _Bool is_waited_for(unsigned int opf)
{
	unsigned int sync =
		1u << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC);

	return (opf & REQ_OP_MASK) == REQ_OP_READ || opf & sync;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(bio_is_queued, struct bio *bio)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gendisk *disk = bio->bi_bdev->bd_disk;
	struct bpf_config *config = get_config();
	__u64 sectors = bio->bi_iter.bi_size >> 9;
	__u64 now = bpf_ktime_get_ns();
	struct disk_use *use;

	if (!config)
		return 0;

	struct disk_key key = {
		.owner = classify_task(task, config),
		.disk = {.major = disk->major, .minor = disk->first_minor},
	};
	struct device device = {
		.kind = DISK, .a = key.disk.major, .b = key.disk.minor};

	use = disk_use_of(&key);
	if (!use)
		return 0;
	note_process_use(task, key.owner, &device, sectors, config);
	if (!is_waited_for(bio->bi_opf)) {
		use->async_sectors += sectors;
		return 0;
	}
	use->requests += 1;
	use->sync_sectors += sectors;
	use->last_ns = now;
	note_device_use(key.owner, &device, now, config);
	return 0;
}
