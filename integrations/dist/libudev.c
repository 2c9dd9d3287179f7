// SPDX-License-Identifier: MIT OR Apache-2.0
// The functions of libudev that libhwloc calls, for the tarball of `make dist`.
//
// A replacement for libudev, which libhwloc uses to read the names of block and
// network devices. Distributions contain libudev only as a shared library,
// which minimal installations lack. In this replacement, udev_new returns NULL.
// libhwloc then reads /run/udev/data itself and never calls the other
// functions.

#include <stddef.h>

struct udev;
struct udev_device;

struct udev *udev_new(void)
{
	return NULL;
}

struct udev *udev_unref(struct udev *udev)
{
	(void)udev;
	return NULL;
}

struct udev_device *
udev_device_new_from_subsystem_sysname(struct udev *udev, const char *subsystem,
				       const char *sysname)
{
	(void)udev;
	(void)subsystem;
	(void)sysname;
	return NULL;
}

const char *udev_device_get_property_value(struct udev_device *device,
					   const char *key)
{
	(void)device;
	(void)key;
	return NULL;
}

struct udev_device *udev_device_unref(struct udev_device *device)
{
	(void)device;
	return NULL;
}
