-- SPDX-License-Identifier: MIT OR Apache-2.0
--
-- Advice at submission: reads what earlier runs of a job have shown, and proposes fewer CPUs.
--
-- slurmctld loads this file (JobSubmitPlugins=lua) and calls slurm_job_submit for every job. The
-- function looks a job up by (user, job name), by (hash of the script, user) and, for `srun PROG`,
-- by (name of the executable, user), in the file that `usher slurm merge` writes (docs/slurm.md). If
-- it finds an entry with fewer useful CPUs than requested, it adds an admin comment and prints a
-- message. Otherwise it does nothing. Only runs of the same user count: the runs of a user never
-- change the messages or jobs of another user.
--
-- The file is data. It is read line by line and never executed. Every error is caught: the job is
-- then submitted unchanged, and the result is always slurm.SUCCESS.
--
-- Works with Lua 5.1 to 5.4, without modules. To combine it with a site's own job_submit.lua, load
-- it there with dofile, and call usher_job_submit(job_desc, part_list, submit_uid).

-- Options of the site.
usher_options = {
    -- The file of advice.
    path = "/var/lib/usher/jobs.json.advice",
    -- Whether to reduce min_cpus and cpus_per_task of jobs with one task. Fewer CPUs for the same
    -- number of tasks (-n) would be an inconsistent request.
    set_min_cpus = false,
    -- Seconds between two reads of the file.
    keep_s = 60,
    -- Limits. A larger file is not used.
    bytes_max = 64 * 1024 * 1024,
    line_bytes_max = 4096,
}

local SCRIPT_BYTES_MAX = 64 * 1024
local MODULUS = 2 ^ 44 - 17
-- Slurm's values for "not set" of 16, 32 and 64 bits start here.
local NOT_SET = { [65534] = true, [65535] = true, [4294967294] = true, [4294967295] = true }

-- Returns a name without spaces, control characters and non-ASCII bytes, as `usher slurm` does.
local function escape(name)
    return (name:gsub("[^\33-\36\38-\126]", function(char)
        return string.format("%%%02X", char:byte())
    end))
end

-- Returns the hash of a script; nil if the script is empty or too long. All numbers are below 2^53.
local function script_hash(script)
    local length = #script
    if length == 0 or length > SCRIPT_BYTES_MAX then
        return nil
    end
    local a, b = 0, 0
    for at = 1, length do
        local byte = script:byte(at)
        a = (a * 257 + byte) % MODULUS
        b = (b * 263 + byte) % MODULUS
    end
    return string.format("%.0f-%.0f-%.0f", length, a, b)
end

-- Returns a whole number from 1 to 65536; nil for other values and for Slurm's "not set".
local function count(value)
    local number = tonumber(value)
    if number and number >= 1 and number <= 65536 and number % 1 == 0 and not NOT_SET[number] then
        return number
    end
    return nil
end

-- Reads the file of advice; nil if it cannot be read or has another format.
local function read_advice()
    local file = io.open(usher_options.path, "r")
    if not file then
        return nil
    end
    local length = file:seek("end")
    if not length or length > usher_options.bytes_max or not file:seek("set") then
        file:close()
        return nil
    end
    local text = file:read(length)
    file:close()
    if not text or text:sub(1, 15) ~= "usher-advice\t1\n" then
        return nil
    end
    local entries = {}
    for line in text:sub(16):gmatch("([^\n]*)\n") do
        local key, useful, measured_to, runs
        if #line <= usher_options.line_bytes_max then
            key, useful, measured_to, runs =
                line:match("^(%l+\t[^\t]+\t[^\t]+)\t(%d+)\t(%d+)\t(%d+)$")
        end
        useful, measured_to, runs = count(useful), count(measured_to), tonumber(runs)
        if key and useful and measured_to and runs then
            entries[key] = { useful = useful, measured_to = measured_to, runs = runs }
        end
    end
    return entries
end

local kept, kept_path, kept_at = nil, nil, nil

-- Returns the advice, read at most once in keep_s seconds.
local function advice()
    local now = os.time()
    local age = kept_at and now - kept_at
    if not age or age < 0 or age >= usher_options.keep_s or kept_path ~= usher_options.path then
        kept, kept_path, kept_at = nil, usher_options.path, now
        kept = read_advice()
    end
    return kept
end

-- Returns the name of the executable of `srun PROG`; nil for scripts and unknown command lines.
local function executable(job_desc)
    local argv = job_desc.argv
    local first
    if type(argv) == "table" then
        first = argv[1] or argv[0]
    elseif type(argv) == "string" then
        first = argv:match("^%S+")
    end
    if type(first) ~= "string" then
        return nil
    end
    return first:match("([^/]+)$")
end

-- Returns the entry of a job of its user; nil if there is none.
local function find(entries, job_desc)
    local user = job_desc.user_name
    local name = job_desc.name
    local script = job_desc.script
    if type(user) ~= "string" or user == "" then
        return nil
    end
    user = escape(user)
    if type(name) == "string" and name ~= "" then
        local entry = entries["job\t" .. user .. "\t" .. escape(name)]
        if entry then
            return entry
        end
    end
    if type(script) == "string" and script ~= "" then
        local hash = script_hash(script)
        return hash and entries["script\t" .. hash .. "\t" .. user]
    end
    local program = executable(job_desc)
    return program and entries["exe\t" .. escape(program) .. "\t" .. user]
end

-- Returns the number of requested CPUs, and the option that requests them; nil if the job requests
-- several tasks of several CPUs, or no number of CPUs.
local function request(job_desc)
    local per_task = count(job_desc.cpus_per_task) or 1
    local tasks = count(job_desc.num_tasks) or 1
    local nodes = count(job_desc.min_nodes) or 1
    if nodes > 1 or (per_task > 1 and tasks > 1) then
        return nil
    end
    if per_task > 1 then
        return per_task, "-c"
    elseif tasks > 1 then
        return tasks, "-n"
    end
    local least = count(job_desc.min_cpus)
    if least and least > 1 then
        return least, "-c"
    end
    return nil
end

local function advise(job_desc)
    local entries = advice()
    if not entries then
        return
    end
    local entry = find(entries, job_desc)
    local requested, option = request(job_desc)
    if not entry or not requested or entry.useful >= requested then
        return
    end
    -- The measurements must cover the request, or show that more CPUs do not help.
    if requested > entry.measured_to and entry.useful > entry.measured_to / 2 then
        return
    end
    local text = string.format("requested %d CPUs, scales to %d (%d %s): try %s %d",
        requested, entry.useful, entry.runs, entry.runs == 1 and "run" or "runs", option,
        entry.useful)
    local comment = "usher: " .. text
    local present = job_desc.admin_comment
    if type(present) == "string" and present ~= "" then
        comment = present .. "; " .. comment
    end
    job_desc.admin_comment = comment
    if usher_options.set_min_cpus and option == "-c" and count(job_desc.min_cpus) then
        job_desc.min_cpus = math.min(count(job_desc.min_cpus), entry.useful)
        if count(job_desc.cpus_per_task) then
            job_desc.cpus_per_task = math.min(count(job_desc.cpus_per_task), entry.useful)
        end
    end
    if slurm.log_user then
        slurm.log_user("%s", text)
    end
end

-- Adds advice to a job. Never fails.
function usher_job_submit(job_desc, part_list, submit_uid)
    local fine, why = pcall(advise, job_desc)
    if not fine and type(slurm) == "table" and slurm.log_info then
        pcall(slurm.log_info, "%s", "usher: no advice: " .. tostring(why))
    end
    return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return usher_job_submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end
