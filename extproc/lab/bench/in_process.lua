-- What one can do without a sidecar: hash the beginning of the first user message, and have
-- ring_hash choose by it. What it cannot: see a part of a body (body() holds all of it in
-- Envoy, and beyond the buffer limit the client gets 413); read JSON (it looks for the text of
-- two keys in a certain order, and escapes stay as they are); know models, adapters or loads.
local bit = require("bit")

local HEAD = 65536
local PREFIX = 100

function envoy_on_request(request)
  local body = request:body()
  if body == nil then return end
  local head = body:getBytes(0, math.min(body:length(), HEAD))
  local model = head:match('"model"%s*:%s*"(.-)"')
  local _, user = head:find('"role"%s*:%s*"user"')
  local _, before = head:find('"content"%s*:%s*"', user)
  if user == nil or before == nil then return end
  local prefix = head:sub(before + 1, before + PREFIX):match('^[^"]*')
  local hash = 5381
  for _, text in ipairs({model or "", prefix}) do
    for i = 1, #text do hash = bit.tobit(hash * 33 + text:byte(i)) end
  end
  request:headers():replace("x-prefix-hash", bit.tohex(hash))
end
