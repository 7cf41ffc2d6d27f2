-- A filter of sbatch that says when a script requests a whole GPU and needs a part of one. It changes nothing.
--
-- Copy it to cli_filter.lua beside slurm.conf on the login nodes, and add to slurm.conf: CliFilterPlugins=cli_filter/lua
-- The script is estimated by `cotenant`, for up to COTENANT_FILTER_SECONDS (default 20; 0 turns the filter off for a user).
-- An estimate is saved: the same script takes half a second from then on.

local DEFAULT_SECONDS = 20

local function quoted(text)
  return "'" .. string.gsub(text, "'", "'\\''") .. "'"
end

-- The words for `cotenant sbatch`: the requests of GPUs on the command line, the script and its arguments.
local function command_line(options)
  local words = { "cotenant", "sbatch", "--to", "slurm", "--dry-run", "--json" }
  for _, name in ipairs({ "gres", "gpus", "gpus-per-node", "partition" }) do
    if options[name] and options[name] ~= "" then
      local value = string.gsub(string.gsub(options[name], "^gres:", ""), ",gres:", ",")
      words[#words + 1] = "--" .. name .. "=" .. quoted(value)
    end
  end
  local script = options["argv"] or {}
  for _, word in ipairs(script) do
    words[#words + 1] = quoted(word)
  end
  return #script > 0 and table.concat(words, " ") or nil
end

local function requests_gpus(options)
  for _, name in ipairs({ "gres", "gpus", "gpus-per-node", "gpus-per-task" }) do
    if string.find(options[name] or "", name == "gres" and "gpu" or "%d") then
      return true
    end
  end
  return false
end

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  local seconds = tonumber(os.getenv("COTENANT_FILTER_SECONDS") or "") or DEFAULT_SECONDS
  -- What cotenant itself submits has been estimated.
  local comment = options["comment"] or ""
  if options["type"] ~= "sbatch" or seconds <= 0 or string.find(comment, "cotenant:", 1, true) then
    return slurm.SUCCESS
  end
  local line = requests_gpus(options) and command_line(options)
  if not line then
    return slurm.SUCCESS
  end
  local pipe = io.popen("timeout " .. math.floor(seconds) .. " " .. line .. " 2>/dev/null </dev/null")
  local answer = pipe:read("*a")
  pipe:close()
  local bound = tonumber(string.match(answer, '"bound_bytes": *(%d+)') or "")
  local shards = tonumber(string.match(answer, '"shards": *(%d+)') or "")
  if bound and shards and shards > 0 then
    slurm.log_info(
      "this job requests a whole GPU and needs %.1f GiB: `cotenant sbatch` requests %d of its shards instead",
      bound / 1073741824, shards
    )
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
